"""Translates constraints and tries them out, each in a process of its own: a hostile one hurts itself.

`python -m ramet.runtime.structured.checker`, started by checking.py only. Its stdin is a socket, over
which it is sent a socket for each constraint, and it forks a child that reads the constraint from there and
answers there. A fork takes a millisecond, since all that a check needs is imported already. Compiling
cannot be interrupted, so what takes too much time or memory ends the child: the kernel sees to it, and
whoever asked reads the end of the socket as the answer.

It knows no vocabulary but the 256 bytes: whether a grammar is sound does not depend on the tokens.
"""

from __future__ import annotations

import fcntl
import gc
import os
import resource
import signal
import socket
import struct
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import BinaryIO, NoReturn, Self

import msgspec
from llguidance import LLMatcher, LLTokenizer

from ..errors import GrammarError
from .byte_vocabulary import byte_tokenizer
from .calls import schemas
from .constraint import Constraint, ConstraintKind
from .translate import explain, limits, translate

MEMORY_BYTES = 2 * 1024**3

BEGUN = b"."
"""What comes first over a job's socket: its processes are there, and its time begins."""

_LENGTH = struct.Struct("!I")
_ALLOWANCE = struct.Struct("!ddi?")
_NUM_TRIED_STEPS = 16


@dataclass(frozen=True, slots=True)
class Allowance:
    """What the check of one constraint may take.

    Attributes:
        cpu_seconds: processor time.
        wall_seconds: bounds a machine under great load only; from when the check begins.
        niceness: of the process at least, so that the steps beside it hardly feel it.
        is_idle: whether it only runs while a core would rest; niceness alone counts where the system
            knows no such policy.
    """

    cpu_seconds: float
    wall_seconds: float
    niceness: int
    is_idle: bool = False

    def encode(self) -> bytes:
        """As bytes, always as many."""
        return _ALLOWANCE.pack(self.cpu_seconds, self.wall_seconds, self.niceness, self.is_idle)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """From `encode`."""
        return cls(*_ALLOWANCE.unpack(data))


class Limit(Enum):
    """What ended a check before its verdict: it took too much, or too little time was left for it."""

    PROCESSOR = "processor"
    WALL = "wall"


class Verdict(msgspec.Struct, frozen=True):
    """What became of one constraint: `grammar` for the engine, or `error` for its sender."""

    grammar: str = ""
    error: str = ""


def check(constraint: Constraint, tokenizer: LLTokenizer) -> Verdict:
    """Translate and compile a constraint, and see whether a first few bytes can follow."""
    try:
        return _check(constraint, tokenizer)
    except BaseException as error:
        # The engine is written in Rust, whose panics are no Exception and have no class to import.
        if type(error).__name__ != "PanicException":
            raise
        return Verdict(error=explain(constraint, f"panic: {error}"))


def _check(constraint: Constraint, tokenizer: LLTokenizer) -> Verdict:
    if constraint.kind is ConstraintKind.CALLS:
        for where, schema in schemas(constraint.source):
            # Each alone first: in the whole it could not be told which of them is at fault.
            verdict = _check(Constraint.json_schema(schema), tokenizer)
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


def send_job(requests: socket.socket, allowance: Allowance, channel: socket.socket) -> None:
    """Let the process at the other end of `requests` check what comes over `channel`.

    Raises:
        OSError: it is gone.
    """
    socket.send_fds(requests, [allowance.encode()], [channel.fileno()])


def _receive_job(requests: socket.socket) -> tuple[Allowance, socket.socket] | None:
    """The next job; None if there will be none."""
    data, descriptors, _, _ = socket.recv_fds(requests, _ALLOWANCE.size, 1)
    return (Allowance.decode(data), socket.socket(fileno=descriptors[0])) if data else None


def main() -> None:
    """Start a check for every job, until there will be none."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # Elsewhere the address space has little to do with memory.
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Nobody asks how a child ended.
    tokenizer = byte_tokenizer()
    check(Constraint.json_schema({"type": "integer"}), tokenizer)  # Imports the rest.
    # Children share what they do not write to, and a collector writes to everything.
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=os.dup(sys.stdin.fileno())) as requests:
        while (job := _receive_job(requests)) is not None:
            allowance, channel = job
            with channel:
                if os.fork() == 0:
                    _answer(allowance, channel, tokenizer)


def _answer(allowance: Allowance, channel: socket.socket, tokenizer: LLTokenizer) -> NoReturn:
    """Check one constraint and end this process."""
    try:
        channel.sendall(BEGUN)
        # Nobody handles the signals, so the kernel ends this process, whatever it is in the middle of.
        signal.setitimer(signal.ITIMER_PROF, allowance.cpu_seconds)
        signal.setitimer(signal.ITIMER_REAL, allowance.wall_seconds)
        niceness = max(os.getpriority(os.PRIO_PROCESS, 0), allowance.niceness)
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
        if allowance.is_idle and sys.platform == "linux":
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        with channel.makefile("rb") as stream:
            body = read_frame(stream)
        if body is not None:
            _end_with(channel)
            verdict = check(msgspec.msgpack.decode(body, type=Constraint), tokenizer)
            signal.signal(signal.SIGIO, signal.SIG_IGN)
            channel.sendall(frame(msgspec.msgpack.encode(verdict)))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _end_with(channel: socket.socket) -> None:
    """Let the kernel end this process when whoever asked does not wait any more."""
    if sys.platform == "linux":
        fcntl.fcntl(channel, fcntl.F_SETOWN, os.getpid())
        flags = fcntl.fcntl(channel, fcntl.F_GETFL)
        fcntl.fcntl(channel, fcntl.F_SETFL, flags | os.O_ASYNC)
        with suppress(BlockingIOError):
            if not channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                os._exit(0)  # They were gone before.


if __name__ == "__main__":
    main()
