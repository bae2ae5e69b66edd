"""What a precision costs in quality: perplexity, and how often the model would say the same.

    python -m ramet.bench.quality [MODEL] [--precisions float32 bfloat16 int8 int4 int8-kv]

The text is Python's language documentation, the same for everybody with the same Python. It is cut into
windows, each scored from its second token on. Against the first precision and the second:

    choice    share of the text's positions where the likeliest token is the same
    prefix    share of the tokens of a greedy answer that come before the first that differs
    same      share of greedy answers that do not differ at all

The answers go on from short pieces of the same text. One engine at a time, through the library.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ramet.runtime import Engine

from .text import documentation_words

# What `Engine` is told. Quantized weights are computed on in the kernels' own dtype.
_OPTIONS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
    "int8-kv": {"dtype": "bfloat16", "kv_cache_dtype": "int8"},
}
PRECISIONS = tuple(_OPTIONS)
_PROMPT_LEN, _ANSWER_LEN = 48, 64


@dataclass(frozen=True, slots=True)
class Result:
    """What a model of one precision made of the text.

    Attributes:
        precision: its name.
        logprobs: of every scored token.
        choices: the likeliest token at each of these positions.
        answers: greedy continuations, all of one length.
        weight_bytes: what its weights take.
        seconds: that all of it took.
    """

    precision: str
    logprobs: tuple[float, ...]
    choices: tuple[int, ...]
    answers: tuple[tuple[int, ...], ...]
    weight_bytes: int
    seconds: float

    @property
    def perplexity(self) -> float:
        """Of the text's scored tokens."""
        return math.exp(-sum(self.logprobs) / len(self.logprobs))

    def same_choices(self, other: Result) -> float:
        """Share of positions where both would choose the same token."""
        pairs = zip(self.choices, other.choices, strict=True)
        return sum(a == b for a, b in pairs) / len(self.choices)

    def same_prefix(self, other: Result) -> float:
        """Share of the answers' tokens that come before the first that differs."""
        pairs = zip(self.answers, other.answers, strict=True)
        return sum(common_prefix(a, b) for a, b in pairs) / sum(map(len, self.answers))

    def same_answers(self, other: Result) -> float:
        """Share of answers that are the same to the end."""
        pairs = zip(self.answers, other.answers, strict=True)
        return sum(a == b for a, b in pairs) / len(self.answers)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Tokens before the first that differs."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))


def windows(token_ids: Sequence[int], num_tokens: int, length: int) -> list[list[int]]:
    """The first `num_tokens` in pieces of `length`; what is left over is not used.

    Raises:
        ValueError: there are not so many.
    """
    if len(token_ids) < num_tokens:
        raise ValueError(f"the text has {len(token_ids)} tokens, not {num_tokens}")
    return [list(token_ids[at : at + length]) for at in range(0, num_tokens - length + 1, length)]


def measure(
    model: str, precision: str, *, num_tokens: int, window: int, num_answers: int
) -> Result:
    """Load the model in that precision and run the text through it.

    Args:
        model: what `Engine` takes.
        precision: one of `PRECISIONS`.
        num_tokens: tokens of the text.
        window: tokens that are scored together.
        num_answers: greedy continuations.

    Raises:
        ValueError: the text is shorter than that.
    """
    started = time.monotonic()
    length = max(window, _PROMPT_LEN + _ANSWER_LEN) + 1
    with Engine(
        model, max_model_len=length, enable_prefix_cache=False, **_OPTIONS[precision]
    ) as engine:
        token_ids = engine.tokenizer.encode(" ".join(documentation_words()), False)
        texts = windows(token_ids, num_tokens, window)
        scored = [
            entry
            for answer in engine.generate(
                texts, temperature=0, max_tokens=1, ignore_eos=True, prompt_logprobs=1
            )
            for entry in answer.prompt_logprobs or ()
        ]
        # From the part of the text that was not scored, as far as there is one.
        step = max(1, (len(token_ids) - _PROMPT_LEN) // num_answers)
        prompts = [token_ids[at : at + _PROMPT_LEN] for at in range(0, step * num_answers, step)]
        answers = engine.generate(prompts, temperature=0, max_tokens=_ANSWER_LEN, ignore_eos=True)
        return Result(
            precision,
            tuple(entry.logprob for entry in scored),
            tuple(entry.top_ids[0] for entry in scored),
            tuple(answer.token_ids for answer in answers),
            engine.info.weight_bytes,
            time.monotonic() - started,
        )


def table(results: Sequence[Result]) -> str:
    """The results as a table in Markdown, each against the first two."""
    references = results[:2]
    columns = ["precision", "weights, MB", "perplexity"]
    columns += [
        f"{what} ({r.precision})" for r in references for what in ("choice", "prefix", "same")
    ]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for result in results:
        cells = [result.precision, f"{result.weight_bytes / 1e6:.0f}", f"{result.perplexity:.3f}"]
        for reference in references:
            shares = (
                result.same_choices(reference),
                result.same_prefix(reference),
                result.same_answers(reference),
            )
            cells += ["-"] * 3 if result is reference else [f"{share:.3f}" for share in shares]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure every precision and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", nargs="?", default="smollm2-135m-instruct", metavar="MODEL")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--tokens", type=int, default=2048, help="tokens of the text")
    parser.add_argument("--window", type=int, default=512, help="tokens scored together")
    parser.add_argument("--answers", type=int, default=32, help="greedy continuations")
    arguments = parser.parse_args()
    results = []
    for precision in arguments.precisions:
        result = measure(
            arguments.model,
            precision,
            num_tokens=arguments.tokens,
            window=arguments.window,
            num_answers=arguments.answers,
        )
        print(f"{precision}: {result.perplexity:.3f}, {result.seconds:.0f} s", flush=True)
        results.append(result)
    print(f"\n{arguments.model}, {len(results[0].logprobs)} tokens scored")
    print(table(results))


if __name__ == "__main__":
    main()
