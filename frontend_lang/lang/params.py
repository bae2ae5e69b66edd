"""How a `gen` samples: every field may be left to the run, and the run's to the defaults.

Plain data for any backend; ranges are checked by whoever samples.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any

from .errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """None means: as the run says, else as the backend does.

    Attributes:
        max_tokens: most tokens; 128 if nobody says otherwise.
        n: samples; the state goes on with the first, the variable is the list of all.
        logprobs: likeliest tokens to list beside each sampled one.
        logprob_start_len: with `logprobs`, the prompt's tokens from this position on are scored too; -1 is
            none.
        regex, json_schema, choice: the text must match; at most one of them.
        timeout: seconds.
        priority: lower runs first.
        Others: as in `ramet.runtime.SamplingParams`.
    """

    max_tokens: int | None = None
    min_tokens: int | None = None
    n: int | None = None
    stop: tuple[str, ...] | None = None
    stop_regex: tuple[str, ...] | None = None
    stop_token_ids: tuple[int, ...] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    logprobs: int | None = None
    logprob_start_len: int | None = None
    regex: str | None = None
    json_schema: str | None = None
    choice: tuple[str, ...] | None = None
    timeout: float | None = None
    priority: int | None = None

    def over(self, defaults: Params) -> Params:
        """These, and where they say nothing the defaults."""
        given = {f.name: v for f in fields(self) if (v := getattr(self, f.name)) is not None}
        return replace(defaults, **given)

    def sampling(self) -> dict[str, Any]:
        """Given fields that say how tokens are chosen, by their names on every ramet interface."""
        skipped = {"n", "timeout", "priority", "logprob_start_len", *CONSTRAINTS}
        return {
            f.name: value
            for f in fields(self)
            if f.name not in skipped and (value := getattr(self, f.name)) is not None
        }

    @property
    def scored_from(self) -> int | None:
        """The prompt's position from which its tokens are scored; None if they are not."""
        start = self.logprob_start_len
        return None if start in (None, -1) or self.logprobs is None else start

    @property
    def constraint(self) -> tuple[str, Any] | None:
        """Which of the constraints is given, and its value."""
        given = [(n, value) for n in CONSTRAINTS if (value := getattr(self, n)) is not None]
        return given[0] if given else None

    def shown(self) -> list[str]:
        """Given fields as they would be written."""
        return [
            f"{f.name}={value!r}"
            for f in fields(self)
            if (value := getattr(self, f.name)) is not None
        ]


CONSTRAINTS = ("regex", "json_schema", "choice")

_LISTS = ("stop", "stop_regex", "stop_token_ids", "choice")
"""Parameters of several parts, of which one may stand alone."""

_TYPES: dict[str, tuple[type, str]] = {
    **dict.fromkeys(
        (
            "max_tokens",
            "min_tokens",
            "n",
            "top_k",
            "seed",
            "logprobs",
            "logprob_start_len",
            "priority",
        ),
        (Integral, "a whole number"),
    ),
    **dict.fromkeys(
        ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "timeout")
        + ("repetition_penalty",),
        (Real, "a number"),
    ),
    **dict.fromkeys(("stop", "stop_regex", "choice"), (str, "a text or a list of texts")),
    "stop_token_ids": (Integral, "a list of whole numbers"),
    "regex": (str, "a text"),
    **dict.fromkeys(("ignore_eos", "skip_special_tokens"), (bool, "True or False")),
    "logit_bias": (dict, "a dictionary"),
}

_SGLANG_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}
_SGLANG_NAMES |= {"sampling_seed": "seed", "top_logprobs_num": "logprobs"}


def make_params(**given: Any) -> Params:
    """Params of keyword arguments, SGLang's names included; sequences are copied.

    An empty text for `stop_regex` is none.

    Raises:
        UsageError: there is no such parameter, one has a value of a wrong type, or two of them contradict
            each other.
    """
    values = {name: value for name, value in given.items() if value is not None}
    asked = values.pop("return_logprob", None)
    values.pop("return_text_in_logprobs", None)  # Their text is always there.
    for old, new in _SGLANG_NAMES.items():
        if old in values:
            if new in values:
                raise UsageError(f"{old} and {new} are the same; give one.")
            values[new] = values.pop(old)
    if asked:
        values.setdefault("logprobs", 0)
    elif asked is False:
        values.pop("logprobs", None)
    known = {f.name for f in fields(Params)}
    for name in values:
        if name not in known:
            raise UsageError(f"There is no sampling parameter {name!r}.")
    for name in _LISTS:
        if name in values:
            values[name] = _tuple(values[name])
    for name, value in values.items():
        _check_type(name, value)
    if given.get("stop_regex") == "":
        values["stop_regex"] = ()
    chosen = [name for name in CONSTRAINTS if name in values]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)} exclude each other.")
    if values.get("n", 1) < 1:
        raise UsageError(f"n must be at least 1, not {values['n']}.")
    timeout = values.get("timeout", 1.0)
    if not timeout > 0:
        raise UsageError(f"timeout must be above 0 seconds, not {timeout}.")
    return Params(**values)


def _check_type(name: str, value: Any) -> None:
    wanted, what = _TYPES.get(name, (object, ""))
    parts = value if name in _LISTS else (value,)
    if not all(isinstance(part, wanted) for part in parts) or (
        wanted in (Integral, Real) and any(isinstance(part, bool) for part in parts)
    ):
        raise UsageError(f"{name} must be {what}, not {value!r}.")


def _tuple(value: Any) -> tuple[Any, ...]:
    return (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
