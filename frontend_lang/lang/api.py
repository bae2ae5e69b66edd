"""What programs are written with: gen, select, roles, tool loops, and the calls around them.

Names and meanings are SGLang's where it has them; see docs/language.md for the differences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from . import nodes
from .choices import ChoicesMethod, token_length_normalized
from .defaults import resolve_backend
from .errors import UsageError
from .params import make_params
from .tools import Tool, as_tools
from .types import constraint_of, dtype_constraint, schema_text

_THINKING_MODELS = ("qwen3", "deepseek-r1", "deepseek-v3", "glm45", "kimi_k2")


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    *,
    choices: Sequence[str] | None = None,
    choices_method: ChoicesMethod | None = None,
    dtype: Any = None,
    type: Any = None,
    json_schema: Any = None,
    tools: Sequence[Callable[..., Any] | Tool] | None = None,
    **params: Any,
) -> nodes.Node:
    """The model writes.

    Args:
        name: variable that gets the text.
        max_tokens: most tokens; 128 unless the run says otherwise. With 0 the model only reads; with
            `logprobs` the meta data then have those of what it would write next.
        min_tokens: tokens before which it does not end.
        n: samples; the state goes on with the first, the variable is the list of all.
        stop: texts that end the answer and are no part of it.
        choices: one of these is taken; see `select`.
        dtype: int, float, bool or str, or its name: the text must be one; the variable stays text.
            A number ends where the model goes on with a blank or a punctuation mark.
        type: the same for more types (Literal, pydantic models, dataclasses, lists, …), and the variable
            is a value of that type.
        json_schema: the text must be JSON that fits: schema as text or dictionary, or a pydantic model.
        tools: functions that the model is told of; calls in its text are in `s.meta(name)["tool_calls"]`.
            They are not run: `tool_loop` does that.
        params: temperature, regex, seed, timeout, …: the fields of `Params`, or SGLang's names.

    Raises:
        UsageError: arguments are wrong or contradict each other.
    """
    _check_name(name)
    params |= {
        key: value
        for key, value in (("min_tokens", min_tokens), ("n", n), ("stop", stop))
        if value is not None
    }
    if choices is not None:
        allowed = {k: params.pop(k) for k in ("timeout", "priority") if k in params}
        if params.pop("temperature", 0) not in (0, 0.0) or any(
            value is not None
            for value in (*params.values(), max_tokens, dtype, type, json_schema, tools)
        ):
            raise UsageError("choices are scored, not sampled: they take no sampling parameters.")
        return select(name, choices, choices_method=choices_method, **allowed)
    if choices_method is not None:
        raise UsageError("choices_method needs choices.")
    if sum(value is not None for value in (dtype, type, json_schema, params.get("regex"))) > 1:
        raise UsageError("dtype, type, json_schema and regex exclude each other.")
    convert = None
    if dtype is not None:
        params = _ended(params, dtype_constraint(dtype))
    elif type is not None:
        constraint, convert = constraint_of(type)
        params = _ended(params, constraint)
    elif json_schema is not None:
        params["json_schema"] = schema_text(json_schema)
    made = make_params(max_tokens=max_tokens, **params)
    node = nodes.Gen(name, made, convert)
    if tools is None:
        return node
    known = as_tools(tools)
    return nodes.sequence([nodes.Tell(known), replace(node, tools=known)])


def _check_name(name: object) -> None:
    if not isinstance(name, str | None):
        raise UsageError(f"A variable's name must be a text, not {name!r}.")


def _ended(params: dict[str, Any], constraint: dict[str, Any]) -> dict[str, Any]:
    """`params` held to `constraint`, whose stop strings come on top."""
    given = params.get("stop") or ()
    stop = (*([given] if isinstance(given, str) else given), *constraint.get("stop", ()))
    return {**params, **constraint, **({"stop": stop} if stop else {})}


def gen_int(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    **params: Any,
) -> nodes.Node:
    """`gen` of an integer's text."""
    return gen(name, max_tokens, None, n, stop, dtype=int, **params)


def gen_string(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    **params: Any,
) -> nodes.Node:
    """`gen` of a string in double quotes."""
    return gen(name, max_tokens, None, n, stop, dtype=str, **params)


def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesMethod | None = None,
    timeout: float | None = None,
    priority: int | None = None,
) -> nodes.Node:
    """The model chooses one of `choices` by their likelihood; `s.meta(name)` has all scores.

    Args:
        choices_method: how their tokens' log-probabilities become scores; the mean by default.

    Raises:
        UsageError: there is no choice, one is no text or given twice, or temperature is not 0.
    """
    if temperature > 1e-5:
        raise UsageError("select takes the best option; a temperature above 0 means nothing here.")
    _check_name(name)
    options = () if isinstance(choices, str) else tuple(choices or ())
    if not options or not all(isinstance(option, str) for option in options):
        raise UsageError("select needs a list of texts as choices.")
    if len(set(options)) < len(options):
        raise UsageError("select has the same choice twice.")
    method = token_length_normalized if choices_method is None else choices_method
    return nodes.Select(name, options, method, timeout, priority)


def tool_loop(
    name: str,
    tools: Sequence[Callable[..., Any] | Tool],
    *,
    max_rounds: int = 8,
    max_tokens: int | None = None,
    **params: Any,
) -> nodes.Node:
    """The assistant answers; functions that it calls are run, and their results appended, until it calls
    none. To be added where no message is open.

    Args:
        name: variable that gets the last answer; its meta data have every call.
        tools: functions with type hints; calls of one round run at the same time.
        max_rounds: answers at most; the state fails if the last one still calls.
        params: as for `gen`.

    Raises:
        UsageError: a tool cannot be described, or a parameter is wrong.
    """
    _check_name(name)
    if max_rounds < 1:
        raise UsageError(f"max_rounds must be at least 1, not {max_rounds}.")
    made = make_params(max_tokens=max_tokens, **params)
    if made.n is not None and made.n > 1:
        raise UsageError("tool_loop goes one way; n must be 1.")
    return nodes.ToolLoop(name, as_tools(tools), made, max_rounds)


def separate_reasoning(expr: nodes.Node, model_type: str = "qwen3") -> nodes.Node:
    """A `gen` whose thinking goes to the variable `<name>_reasoning_content`.

    Raises:
        UsageError: `expr` is no gen, or the model does not think in `<think>` tags.
    """
    if not isinstance(expr, nodes.Gen):
        raise UsageError("separate_reasoning takes a gen.")
    if model_type not in _THINKING_MODELS:
        raise UsageError(f"model_type must be one of {', '.join(_THINKING_MODELS)}.")
    name = f"{expr.name}_reasoning_content" if expr.name else ""
    return nodes.SeparateReasoning(expr, reasoning_name=name)


def system(content: nodes.Addable = None) -> nodes.Node:
    """A system message."""
    return _message("system", content)


def user(content: nodes.Addable = None) -> nodes.Node:
    """A user message."""
    return _message("user", content)


def assistant(content: nodes.Addable = None) -> nodes.Node:
    """An assistant message."""
    return _message("assistant", content)


def system_begin() -> nodes.Node:
    """A system message begins."""
    return nodes.RoleBegin("system")


def system_end() -> nodes.Node:
    """The system message ends."""
    return nodes.RoleEnd("system")


def user_begin() -> nodes.Node:
    """A user message begins."""
    return nodes.RoleBegin("user")


def user_end() -> nodes.Node:
    """The user message ends."""
    return nodes.RoleEnd("user")


def assistant_begin() -> nodes.Node:
    """An assistant message begins."""
    return nodes.RoleBegin("assistant")


def assistant_end() -> nodes.Node:
    """The assistant message ends."""
    return nodes.RoleEnd("assistant")


def _message(role: str, content: nodes.Addable) -> nodes.Node:
    return nodes.sequence([nodes.RoleBegin(role), content, nodes.RoleEnd(role)])


def image(*args: Any, **kwargs: Any) -> NoReturn:
    """Images are not supported.

    Raises:
        UsageError: always.
    """
    raise UsageError("Images are not supported: the models served here read text.")


def video(*args: Any, **kwargs: Any) -> NoReturn:
    """Videos are not supported.

    Raises:
        UsageError: always.
    """
    raise UsageError("Videos are not supported: the models served here read text.")


def flush_cache(backend: Any = None) -> None:
    """Forget every cached prefix of the backend.

    Raises:
        UsageError: the backend has no cache that could be asked.
    """
    _ask(backend, "flush_cache")()


def get_server_info(backend: Any = None) -> dict[str, Any]:
    """What the backend says of itself.

    Raises:
        UsageError: it says nothing.
    """
    info: dict[str, Any] = _ask(backend, "get_server_info")()
    return info


def _ask(backend: Any, method: str) -> Callable[[], Any]:
    chosen = resolve_backend(backend)
    if not hasattr(chosen, method):
        raise UsageError(f"{type(chosen).__name__} has no {method}.")
    found: Callable[[], Any] = getattr(chosen, method)
    return found
