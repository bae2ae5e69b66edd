"""A process that translates constraints and tries them out, so that a hostile one costs only itself.

`python -m ramet.runtime.structured.checker SECONDS`, started by service.py only. Reads framed
constraints from stdin and answers each on stdout, until stdin ends. Compiling cannot be interrupted, so
what takes too much time or memory ends the process: the kernel sees to it, and the parent reads that as
the answer.

It knows no vocabulary but the 256 bytes: whether a grammar is sound does not depend on the tokens.
"""

from __future__ import annotations

import resource
import signal
import struct
import sys
from typing import BinaryIO

import msgspec
from llguidance import LLMatcher, LLTokenizer

from ..errors import GrammarError
from .byte_vocabulary import byte_tokenizer
from .calls import schemas
from .constraint import Constraint, ConstraintKind
from .translate import explain, limits, translate

MEMORY_BYTES = 2 * 1024**3

_LENGTH = struct.Struct("!I")
_NUM_TRIED_STEPS = 16


class Verdict(msgspec.Struct, frozen=True):
    """What became of one constraint: `grammar` for the engine, or `error` for its sender."""

    grammar: str = ""
    error: str = ""


def check(constraint: Constraint, tokenizer: LLTokenizer) -> Verdict:
    """Translate and compile a constraint, and see whether a first few bytes can follow."""
    if constraint.kind is ConstraintKind.CALLS:
        for where, schema in schemas(constraint.source):
            # Each alone first: in the whole it could not be told which of them is at fault.
            verdict = check(Constraint.json_schema(schema), tokenizer)
            if verdict.error:
                return Verdict(error=f"{where}: {verdict.error}")
    try:
        grammar = translate(constraint)
        is_plain = constraint.kind is not ConstraintKind.CALLS
        tried = grammar if is_plain else translate(constraint, has_tokens=False)
    except GrammarError as error:
        return Verdict(error=str(error))
    matcher = LLMatcher(tokenizer, tried, log_level=0, limits=limits())
    for _ in range(_NUM_TRIED_STEPS):
        legal = _legal_bytes(matcher)
        if matcher.is_error():
            return Verdict(error=explain(constraint, matcher.get_error()))
        if not legal:
            if matcher.is_accepting():
                break
            return Verdict(error=explain(constraint, "no text can match it"))
        matcher.consume_token(legal[0])
    return Verdict(grammar)


def _legal_bytes(matcher: LLMatcher) -> list[int]:
    if matcher.is_error() or matcher.is_stopped():
        return []
    mask = matcher.compute_bitmask()
    return [byte for byte in range(256) if mask[byte // 8] >> byte % 8 & 1]


def read_frame(stream: BinaryIO) -> bytes | None:
    """The next frame; None if the stream ended."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    body = stream.read(length)
    return body if len(body) == length else None


def frame(body: bytes) -> bytes:
    """A body as `read_frame` reads it."""
    return _LENGTH.pack(len(body)) + body


def main(cpu_seconds: float) -> None:
    """Answer until stdin ends, or a constraint takes more than `cpu_seconds` of processor time."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # Elsewhere the address space has little to do with memory.
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    tokenizer = byte_tokenizer()
    decoder = msgspec.msgpack.Decoder(Constraint)
    while (body := read_frame(sys.stdin.buffer)) is not None:
        # Nobody handles the signal, so the kernel ends this process, whatever it is in the middle of.
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        verdict = check(decoder.decode(body), tokenizer)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(frame(msgspec.msgpack.encode(verdict)))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(float(sys.argv[1]))
