"""Checks in processes of their own: what they may take, and what becomes of them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from ramet.runtime.errors import EngineError
from ramet.runtime.structured import checking
from ramet.runtime.structured.checker import Allowance, Limit, Verdict
from ramet.runtime.structured.checking import Checker
from ramet.runtime.structured.constraint import Constraint

LIMIT = 60.0
ENOUGH = Allowance(cpu_seconds=20.0, wall_seconds=40.0, niceness=3)
GOOD = Constraint.regex("[a-z]+")
BOMB = Constraint.json_schema(
    {"allOf": [{"type": "string", "pattern": f"(a|b).{{{i}}}c"} for i in range(1, 40)]}
)
needs_limits = pytest.mark.skipif(sys.platform != "linux", reason="needs the kernel's limits")


@pytest.fixture
def checker() -> Iterator[Checker]:
    checker = Checker()
    yield checker
    checker.close()


def pid(checker: Checker) -> int:
    assert checker._process is not None
    return checker._process.pid


def children(parent: int) -> list[int]:
    return [
        int(word) for word in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    ]


def test_an_allowance_arrives_as_it_was_sent() -> None:
    assert Allowance.decode(ENOUGH.encode()) == ENOUGH


def test_sound_constraints_come_back_as_grammars_and_others_as_errors(checker: Checker) -> None:
    sound = checker.check(GOOD, ENOUGH)
    assert isinstance(sound, Verdict) and sound.grammar and not sound.error
    broken = checker.check(Constraint.regex("("), ENOUGH)
    assert isinstance(broken, Verdict) and "unclosed group" in broken.error and not broken.grammar


def test_a_constraint_and_a_grammar_of_any_size_pass(checker: Checker) -> None:
    verdict = checker.check(Constraint.choice([f"{i:060}" for i in range(4000)]), ENOUGH)
    assert isinstance(verdict, Verdict) and len(verdict.grammar) > 240_000


@needs_limits
def test_a_check_ends_with_its_processor_time_and_those_beside_it_go_on(checker: Checker) -> None:
    little = Allowance(cpu_seconds=0.05, wall_seconds=40.0, niceness=0)
    with ThreadPoolExecutor(4) as pool:
        bombs = [pool.submit(checker.check, BOMB, little) for _ in range(3)]
        good = pool.submit(checker.check, GOOD, ENOUGH)
        assert isinstance(good.result(LIMIT), Verdict)
        assert [bomb.result(LIMIT) for bomb in bombs] == [Limit.PROCESSOR] * 3


@needs_limits
def test_a_check_ends_with_its_time_however_little_it_computed(checker: Checker) -> None:
    hasty = Allowance(cpu_seconds=40.0, wall_seconds=0.2, niceness=0)
    assert checker.check(BOMB, hasty) is Limit.WALL


@needs_limits
def test_checks_have_the_niceness_that_they_are_allowed_and_are_gone_when_it_closes(
    checker: Checker,
) -> None:
    checker.check(GOOD, ENOUGH)
    parent = pid(checker)
    with ThreadPoolExecutor(1) as pool:
        bomb = pool.submit(checker.check, BOMB, ENOUGH)
        deadline = time.monotonic() + LIMIT
        found: set[int] = set()
        while not any(os.getpriority(os.PRIO_PROCESS, child) == 3 for child in found):
            assert time.monotonic() < deadline
            found = set(children(parent))
        assert os.getpriority(os.PRIO_PROCESS, parent) == os.getpriority(os.PRIO_PROCESS, 0)
        checker.close()
        with pytest.raises(EngineError, match="closed"):
            bomb.result(LIMIT)
    while any(Path(f"/proc/{child}").exists() for child in found):
        assert time.monotonic() < deadline


@needs_limits
def test_an_idle_check_only_runs_while_a_core_would_rest(checker: Checker) -> None:
    checker.check(GOOD, ENOUGH)
    idle = Allowance(cpu_seconds=20.0, wall_seconds=40.0, niceness=3, is_idle=True)
    with ThreadPoolExecutor(1) as pool:
        bomb = pool.submit(checker.check, BOMB, idle)
        deadline = time.monotonic() + LIMIT
        policies: set[int] = set()
        while os.SCHED_IDLE not in policies:
            assert time.monotonic() < deadline
            with suppress(ProcessLookupError):  # The first check may be ending.
                policies = set(map(os.sched_getscheduler, children(pid(checker))))
        checker.close()
        with pytest.raises(EngineError, match="closed"):
            bomb.result(LIMIT)


def test_a_process_that_somebody_killed_is_started_again(checker: Checker) -> None:
    assert isinstance(checker.check(GOOD, ENOUGH), Verdict)
    first = pid(checker)
    os.kill(first, signal.SIGKILL)
    # What is on its way when it dies may be lost; the next one is not.
    verdicts = [checker.check(GOOD, ENOUGH) for _ in range(2)]
    assert isinstance(verdicts[-1], Verdict)
    assert pid(checker) != first


def test_the_process_may_be_started_before_it_is_needed(checker: Checker) -> None:
    checker.start()
    first = pid(checker)
    checker.start()
    assert isinstance(checker.check(GOOD, ENOUGH), Verdict) and pid(checker) == first
    checker.close()
    checker.start()
    assert checker._process is None


@needs_limits
def test_a_check_has_its_niceness_whatever_that_of_the_process_is(checker: Checker) -> None:
    def lowered() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 2)

    with ThreadPoolExecutor(1, initializer=lowered) as pool:
        pool.submit(checker.start).result(LIMIT)
        bomb = pool.submit(checker.check, BOMB, ENOUGH)
        deadline = time.monotonic() + LIMIT
        found: set[int] = set()
        while 3 not in found:
            assert time.monotonic() < deadline
            with suppress(ProcessLookupError):
                found = {os.getpriority(os.PRIO_PROCESS, c) for c in children(pid(checker))}
            assert not any(niceness > 3 for niceness in found)
        checker.close()
        with pytest.raises(EngineError, match="closed"):
            bomb.result(LIMIT)


@needs_limits
def test_a_check_that_nobody_waits_for_any_more_is_ended(checker: Checker) -> None:
    checker.check(GOOD, ENOUGH)
    deadline = time.monotonic() + LIMIT

    def check_wanted() -> None:
        if children(pid(checker)):
            raise EngineError("nobody waits")

    with pytest.raises(EngineError, match="nobody waits"):
        checker.check(BOMB, ENOUGH, check_wanted)
    while children(pid(checker)):
        assert time.monotonic() < deadline
    assert isinstance(checker.check(GOOD, ENOUGH), Verdict)


@needs_limits
def test_time_begins_with_the_check_and_not_with_the_process_that_forks_it(
    checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "_PATIENCE_SECONDS", 0.0)
    checker.start()
    os.kill(pid(checker), signal.SIGSTOP)
    waking = threading.Timer(0.5, os.kill, (pid(checker), signal.SIGCONT))
    waking.start()
    little = Allowance(cpu_seconds=20.0, wall_seconds=0.4, niceness=0)
    try:
        assert isinstance(checker.check(Constraint.regex("a"), little), Verdict)
    finally:
        waking.join()


def test_a_closed_checker_checks_nothing(checker: Checker) -> None:
    checker.close()
    checker.close()
    with pytest.raises(EngineError, match="closed"):
        checker.check(GOOD, ENOUGH)


def test_the_process_ends_in_silence_with_whoever_started_it() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "ramet.runtime.structured.checker"],
            stdin=theirs.fileno(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    ours.close()
    assert process.communicate(timeout=LIMIT) == (b"", b"")
    assert process.returncode == 0
