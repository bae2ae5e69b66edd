"""An engine in this process. Tokens go in and come out; nothing is tokenized twice."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from ..chat import Frames
from ..errors import UsageError
from ..params import Params
from .base import Generated, GenRequest, Message, OptionScore, Sample, Scored, ScoreRequest
from .places import Places

if TYPE_CHECKING:
    from ramet.runtime import Completion, Engine
    from ramet.runtime.request import TokenLogprobs

# Texts from this size on are tokenized on a thread, so that other states go on meanwhile.
_LONG_TEXT = 20_000


class Runtime:
    """A model in this process, as a backend. Closing it ends its engine.

    Args:
        model: as for `ramet.runtime.Engine`; None is the default model.
        options: of that engine; `model_path` is SGLang's name for `model`.

    Raises:
        UsageError: `model` and `model_path` are both given.
        RametError: the model cannot be loaded.
    """

    def __init__(self, model: str | os.PathLike[str] | None = None, **options: Any) -> None:
        from ramet.runtime import Engine

        if "model_path" in options:
            if model is not None:
                raise UsageError("model and model_path are the same; give one.")
            model = options.pop("model_path")
        self._setup(Engine(**options) if model is None else Engine(model, **options))

    @classmethod
    def from_engine(cls, engine: Engine) -> Runtime:
        """A backend around an engine that exists; closing the one closes the other."""
        runtime = cls.__new__(cls)
        runtime._setup(engine)
        return runtime

    def _setup(self, engine: Engine) -> None:
        from ramet.runtime.text.chat_template import ChatTemplate

        self.engine = engine
        # An engine without a bound takes whatever comes.
        self._places = Places(sys.maxsize if engine.max_live is None else engine.max_live)
        self.frames: Frames | None = Frames(self._render)
        self.restarts = False
        self._template = ChatTemplate(engine.tokenizer)

    @property
    def retains(self) -> bool:
        """Whether the engine retains prefixes; an option of it."""
        return self.engine.info.max_retain_seconds > 0

    def check(self, params: Params) -> None:
        """Pass if the engine takes the constraint, if there is one; it checks the rest itself.

        Raises:
            GrammarError: the constraint is empty or too long.
        """
        _constraint(params)

    async def generate(self, request: GenRequest) -> Generated:
        """Sample; see `Backend`."""
        async with self._places.take(request.params.n or 1):
            return await self._generate(request)

    async def _generate(self, request: GenRequest) -> Generated:
        params, prompt = request.params, request.prompt
        new_ids = await self._encode(prompt.text, not prompt.ids)
        ids = [*prompt.ids, *new_ids]
        options = {**params.sampling(), **_constraint(params), **_envelope(request)}
        options |= _scoring(params, len(ids))
        if request.on_text is not None:
            async with aclosing(self.engine.astream(ids, **options)) as stream:
                num_shown = 0
                async for text in stream:
                    new = stream.logprobs[num_shown:]
                    num_shown += len(new)
                    request.on_text(text, self._entries(new))
            assert stream.completion is not None
            completions = [stream.completion]
        else:
            completions = await self.engine.agenerate(ids, n=params.n or 1, **options)
        return Generated(
            samples=[self._sample(completion, params) for completion in completions],
            prompt_ids=tuple(new_ids),
            num_prompt_tokens=len(ids),
            num_cached_tokens=completions[0].num_cached_tokens,
            prompt_logprobs=self._prompt_entries(params.scored_from, ids, completions[0]),
        )

    async def score(self, request: ScoreRequest) -> Scored:
        """Score options; see `Backend`. Their prompts are one call, over the prefix's cached KV."""
        from ramet.runtime.text.seams import option_prompts

        prompt, tokenizer = request.prompt, self.engine.tokenizer
        made = await asyncio.to_thread(
            option_prompts, tokenizer, prompt.ids, prompt.text, request.options
        )
        logprobs, num_cached = await self._logprobs(made.ids, made.start, _envelope(request))
        bare: list[tuple[float, ...]] = [()] * len(made.ids)
        if request.unconditional:
            start = tokenizer.encode("", add_special_tokens=True)
            tails = [[*start, *ids[made.start :]] for ids in made.ids]
            bare, _ = await self._logprobs(tails, len(start), _envelope(request))
        scores = tuple(
            OptionScore(
                text=option,
                token_ids=tuple(ids[made.start :]),
                tokens=tuple(map(tokenizer.token_text, ids[made.start :])),
                logprobs=row,
                unconditional=alone,
            )
            for option, ids, row, alone in zip(
                request.options, made.ids, logprobs, bare, strict=True
            )
        )
        return Scored(
            options=scores,
            num_prompt_tokens=sum(map(len, made.ids)),
            num_cached_tokens=num_cached,
        )

    async def retain(self, session: str, ids: tuple[int, ...], seconds: float | None) -> None:
        """Keep a prefix for a state that waits; see `Backend`."""
        self.engine.retain(ids, session, seconds)

    def release(self, session: str) -> None:
        """End what `retain` began."""
        self.engine.release(session)

    async def _logprobs(
        self, prompts: Sequence[list[int]], start: int, envelope: dict[str, Any]
    ) -> tuple[list[tuple[float, ...]], int]:
        """Of each prompt's tokens from `start`; and cached tokens of all. The first token of all has
        nothing before it, and counts as certain."""
        async with self._places.take(len(prompts)):
            completions = await self.engine.agenerate(
                [ids for ids in prompts if ids],
                max_tokens=0,
                temperature=0.0,
                prompt_logprobs=0,
                prompt_logprobs_start=start,
                **envelope,
            )
        answers = iter(completions)
        rows = []
        for ids in prompts:
            scored = next(answers).prompt_logprobs if ids else None
            values = [entry.logprob for entry in scored or ()]
            num_tokens = len(ids) - start
            values = values[len(values) - min(num_tokens, len(values)) :]
            rows.append(tuple([0.0] * (num_tokens - len(values)) + values))
        return rows, sum(completion.num_cached_tokens for completion in completions)

    async def _render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> str:
        from ramet.runtime.tools.definitions import definitions, read_tools
        from ramet.runtime.tools.instruction import told

        plain = [message.as_dict() for message in messages]
        known = definitions(read_tools(tools or ()))
        shown, listed = told(plain, known, lists_tools=self._template.lists_tools)
        return await asyncio.to_thread(
            lambda: self._template.render(
                shown, tools=listed, add_generation_prompt=add_generation_prompt
            )
        )

    async def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        encode = self.engine.tokenizer.encode
        if len(text) < _LONG_TEXT:
            return encode(text, add_special_tokens)
        return await asyncio.to_thread(encode, text, add_special_tokens)

    def _sample(self, completion: Completion, params: Params) -> Sample:
        from ramet.runtime import SamplingParams
        from ramet.runtime.text.seams import kept_tokens

        reason = completion.stop_reason
        stops = SamplingParams(stop=params.stop or (), stop_regex=params.stop_regex or ())
        num_kept, rest = len(completion.token_ids), ""
        if reason in stops.stop_strings:
            num_kept, rest = kept_tokens(
                self.engine.tokenizer,
                completion.token_ids,
                completion.text,
                skip_special_tokens=params.skip_special_tokens is not False,
            )
        elif completion.finish_reason == "stop" and not isinstance(reason, str):
            ends = (*self.engine.info.eos_token_ids, reason)
            num_kept -= completion.token_ids[-1] in ends
        entries = completion.logprobs
        return Sample(
            text=completion.text,
            kept_ids=completion.token_ids[:num_kept],
            rest=rest,
            num_tokens=len(completion.token_ids),
            finish_reason=completion.finish_reason.value,
            stop_reason=completion.stop_reason,
            logprobs=None if entries is None else self._entries(entries),
        )

    def _entries(self, logprobs: Sequence[TokenLogprobs]) -> tuple[dict[str, Any], ...]:
        name = self.engine.tokenizer.token_text
        return tuple(
            {
                "token_id": entry.token_id,
                "token": name(entry.token_id),
                "logprob": entry.logprob,
                "top_ids": entry.top_ids,
                "top_tokens": tuple(map(name, entry.top_ids)),
                "top_logprobs": entry.top_logprobs,
            }
            for entry in logprobs
        )

    def _prompt_entries(
        self, start: int | None, ids: Sequence[int], completion: Completion
    ) -> tuple[dict[str, Any], ...] | None:
        if start is None:
            return None
        unscored = {"token_id": ids[start], "token": self.engine.tokenizer.token_text(ids[start])}
        unscored |= {"logprob": None, "top_ids": (), "top_tokens": (), "top_logprobs": ()}
        return (unscored, *self._entries(completion.prompt_logprobs or ()))

    def flush_cache(self) -> None:
        """Forget every cached prefix that no running request holds."""
        self.engine.reset_prefix_cache()

    def get_server_info(self) -> dict[str, Any]:
        """What the engine resolved, and its counters."""
        import msgspec

        return {
            **msgspec.structs.asdict(self.engine.info),
            **msgspec.structs.asdict(self.engine.stats),
        }

    def close(self) -> None:
        """End the engine. Safe to call twice."""
        self.engine.close()

    shutdown = close

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _envelope(request: GenRequest | ScoreRequest) -> dict[str, Any]:
    """What the scheduler is told of a request."""
    siblings = {} if request.group is None else {"group": request.group}
    return {"priority": request.params.priority or 0, **siblings}


def _scoring(params: Params, num_prompt_tokens: int) -> dict[str, Any]:
    """The sampling parameters that have the prompt scored, if that is asked for."""
    start = params.scored_from
    if start is None:
        return {}
    from ramet.runtime.engine.arrivals import check_logprob_start

    check_logprob_start(start, num_prompt_tokens)
    return {"prompt_logprobs": params.logprobs, "prompt_logprobs_start": start + 1}


def _constraint(params: Params) -> dict[str, Any]:
    """The sampling parameter that makes the text fit, if one is asked for."""
    if params.constraint is None:
        return {}
    from ramet.runtime.structured.constraint import Constraint

    name, value = params.constraint
    return {"constraint": getattr(Constraint, name)(value)}
