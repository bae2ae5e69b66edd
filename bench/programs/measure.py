"""Runs a program over its sessions and counts: tokens read, found, written, time, failures.

The hit rate is cached over all prompt tokens, as the backend reports them; the ideal one is that of an
infinite cache for the very tokens that were sent (`ideal`). A request for several samples counts its
prompt once. Loading, counting tokens and the ideal walk are outside the time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ramet

from .ideal import TokenCall, ideal_hits
from .program import Program
from .target import Tokens

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How programs are run.

    Attributes:
        data: the folder of all data.
        num_sessions, concurrency: None for the program's own.
        history: how replays go on; see `replay`.
    """

    data: Path
    num_sessions: int | None = None
    concurrency: int | None = None
    history: str = "recorded"


def measure(program: Program[Any], backend: Any, tokens: Tokens, options: Options) -> Figures:
    """Run the program once.

    Raises:
        DataError: its files are not there, or not what they should be.
        ServerError: the server cannot tell the tokens of a text.
    """
    concurrency = options.concurrency or program.concurrency
    cases, left_out = _choose(program, tokens, options)
    calls = [program.arguments(case, _counter(tokens), options.history) for case in cases]
    recorder = ramet.Recorder(backend)
    began = time.perf_counter()
    states = program.function.run_batch(
        calls, backend=recorder, num_threads=concurrency, errors="return", **program.defaults
    )
    wall = time.perf_counter() - began
    good = [(case, state) for case, state in zip(cases, states, strict=True) if not state.error()]
    failures = Counter(_reason(error) for state in states if (error := state.error()))
    outcome = program.judge([case for case, _ in good], [state for _, state in good])
    return {
        "sessions": len(cases),
        "left_out": left_out,
        "concurrency": concurrency,
        "history": options.history if program.replays else None,
        "failed": len(cases) - len(good),
        "failures": dict(failures.most_common()),
        "wall_s": wall,
        **count_calls(recorder.calls, tokens, wall),
        "outcome": outcome,
    }


def count_calls(calls: Sequence[Any], tokens: Tokens, wall: float) -> Figures:
    """Figures of a recorder's calls; those that failed are counted and enter nothing else."""
    good = [call for call in calls if call.generated is not None]
    prompt = sum(call.generated.num_prompt_tokens for call in good)
    cached = [call.generated.num_cached_tokens for call in good]
    known = prompt > 0 and None not in cached
    written = sum(sample.num_tokens for call in good for sample in call.generated.samples)
    walked = [_as_tokens(call, tokens) for call in good]
    walked_tokens = sum(len(call.prompt) for call in walked)
    ideal = sum(ideal_hits(walked)) / walked_tokens if walked_tokens else None
    hit_rate = sum(cached) / prompt if known else None
    return {
        "calls": len(calls),
        "failed_calls": len(calls) - len(good),
        "prompt_tokens": prompt,
        "cached_tokens": sum(cached) if known else None,
        "hit_rate": hit_rate,
        "ideal_hit_rate": ideal,
        "hit_of_ideal": hit_rate / ideal if hit_rate is not None and ideal else None,
        "generated_tokens": written,
        "generated_tokens_per_s": written / wall,
        "call_mean_s": sum(call.seconds for call in good) / len(good) if good else None,
    }


def _choose(
    program: Program[Any], tokens: Tokens, options: Options
) -> tuple[list[Any], dict[str, int]]:
    """The first sessions that fit the context, and how many before them do not."""
    limit = tokens.max_context()
    wanted = options.num_sessions or program.num_sessions
    cases: list[Any] = []
    num_long = 0
    for case in program.load(options.data):
        if len(cases) == wanted:
            break
        if program.size(case, _counter(tokens)) > limit:
            num_long += 1
        else:
            cases.append(case)
    return cases, {f"longer than {limit} tokens": num_long} if num_long else {}


def _counter(tokens: Tokens) -> Any:
    return lambda text: len(tokens.of_text(text, bare=True))


def _as_tokens(call: Any, tokens: Tokens) -> TokenCall:
    """A call as the tokens that were sent; where text was sent, as the server tokenizes it."""
    prompt, generated = call.prompt, call.generated
    if generated.prompt_ids is not None:
        ids = [*prompt.ids, *generated.prompt_ids]
        outputs = [list(sample.kept_ids) for sample in generated.samples]
    else:
        if prompt.messages:
            sent = [{"role": m.role, "content": m.content} for m in prompt.messages]
            ids = tokens.of_messages(sent[:-1] if prompt.is_open else sent)
        else:
            ids = tokens.of_text(prompt.whole)
        outputs = [tokens.of_text(sample.text, bare=True) for sample in generated.samples]
    return TokenCall(prompt=ids, outputs=outputs, sent=call.sent, ended=call.ended)


def _reason(error: BaseException) -> str:
    cause = error.__cause__ or error
    return f"{type(cause).__name__}: {' '.join(str(cause).split())[:160]}"
