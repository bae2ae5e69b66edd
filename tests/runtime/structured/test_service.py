"""Compiling beside the step loop: once for all who ask, bounded, and a bomb hurts nobody else."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress

import pytest

from ramet.runtime.errors import CapacityError, EngineError, GrammarError
from ramet.runtime.structured import service as service_module
from ramet.runtime.structured.byte_vocabulary import byte_tokenizer
from ramet.runtime.structured.checker import Limit, Verdict, check
from ramet.runtime.structured.constraint import Constraint, ConstraintKind
from ramet.runtime.structured.grammar import Vocabulary
from ramet.runtime.structured.service import NUM_QUICK, GrammarService, quick_seconds
from ramet.runtime.structured.threads import THREAD_NICENESS

LIMIT = 60.0
BOMB = Constraint.json_schema(
    {"allOf": [{"type": "string", "pattern": f"(a|b).{{{i}}}c"} for i in range(1, 40)]}
)


@pytest.fixture
def held(vocabulary: Vocabulary) -> Iterator[tuple[GrammarService, threading.Event]]:
    """A service that compiles nothing before the event is set."""
    event = threading.Event()

    def wait_for_it() -> Vocabulary:
        assert event.wait(LIMIT)
        return vocabulary

    service = GrammarService(wait_for_it)
    yield service, event
    event.set()
    service.close()


def test_equal_constraints_share_one_compilation(
    held: tuple[GrammarService, threading.Event],
) -> None:
    service, event = held
    first = service.get(Constraint.regex("a+", param="one"))
    second = service.get(Constraint.regex("a+", param="other"))
    other = service.get(Constraint.regex("b+"))
    assert first is second and other is not first and len(service) == 2
    event.set()
    assert first.result(LIMIT) is not other.result(LIMIT)
    assert service.get(Constraint.regex("a+")) is first


def test_a_constraint_that_nobody_wants_any_more_is_not_compiled(
    held: tuple[GrammarService, threading.Event],
) -> None:
    service, event = held
    constraints = [Constraint.regex("a" * size) for size in range(1, NUM_QUICK + 4)]
    futures = [service.get(constraint) for constraint in constraints]
    service.get(constraints[-1])
    for constraint in constraints:
        service.leave(constraint)
    assert futures[-2].cancelled() and not futures[-1].cancelled()
    event.set()
    futures[-1].result(LIMIT)


def test_it_remembers_so_many_grammars_and_forgets_the_least_used(service: GrammarService) -> None:
    constraints = [Constraint.regex(letter) for letter in "abcd"]
    futures = [service.get(constraint) for constraint in constraints[:3]]
    for future in futures:
        future.result(LIMIT)
    assert service.get(constraints[0]) is futures[0]
    service.get(constraints[3]).result(LIMIT)
    assert len(service) == 3
    assert service.get(constraints[0]) is futures[0]
    assert service.get(constraints[1]) is not futures[1]


def test_a_malformed_constraint_fails_by_itself_with_its_field(service: GrammarService) -> None:
    bad = service.get(Constraint.regex("(", param="guided_regex"))
    good = service.get(Constraint.regex("a"))
    assert good.result(LIMIT)
    with pytest.raises(GrammarError, match="unclosed group") as caught:
        bad.result(LIMIT)
    assert caught.value.param == "guided_regex"


@pytest.mark.skipif(sys.platform != "linux", reason="needs the kernel's limits")
def test_a_bomb_ends_within_its_limits_and_what_comes_with_it_is_compiled(
    service: GrammarService,
) -> None:
    bomb = service.get(BOMB)
    good = service.get(Constraint.json_schema({"type": "integer"}))
    assert good.result(LIMIT)
    with pytest.raises(GrammarError, match="too complex"):
        bomb.result(LIMIT)
    assert service.get(Constraint.regex("ab")).result(LIMIT)


def bomb(number: int) -> Constraint:
    """One that takes seconds to compile, and is like no other."""
    parts = [{"type": "string", "pattern": f"(a|b).{{{i}}}c{number}"} for i in range(1, 40)]
    return Constraint.json_schema({"allOf": parts})


class Thorough:
    """Stands in for the checks of the thorough lane: none ends before the event is set."""

    def __init__(self, service: GrammarService, monkeypatch: pytest.MonkeyPatch) -> None:
        self.event, self.checked = threading.Event(), list[Constraint]()
        self.begun: queue.SimpleQueue[Constraint] = queue.SimpleQueue()
        monkeypatch.setattr(service._thorough, "check", self.check)

    def check(self, constraint: Constraint, *, check_wanted: Callable[[], None]) -> Limit:
        self.checked.append(constraint)
        self.begun.put(constraint)
        assert self.event.wait(LIMIT)
        return Limit.PROCESSOR


@pytest.mark.skipif(sys.platform != "linux", reason="needs the kernel's limits")
def test_what_is_cheap_is_compiled_while_bombs_are_still_being_checked(
    service: GrammarService, monkeypatch: pytest.MonkeyPatch
) -> None:
    thorough = Thorough(service, monkeypatch)
    bombs = [service.get(bomb(number)) for number in range(1, 6)]
    cheap = [service.get(Constraint.regex(f"[a-z]{{{size}}}")) for size in range(1, 9)]
    for future in cheap:
        assert future.result(LIMIT)
    assert not any(future.done() for future in bombs)
    thorough.event.set()
    for future in bombs:
        with pytest.raises(GrammarError, match="too complex"):
            future.result(LIMIT)
    assert sorted(map(str, thorough.checked)) == sorted(str(bomb(n)) for n in range(1, 6))


def test_what_people_write_is_checked_quickly_however_far_it_counts(
    service: GrammarService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service._thorough, "check", None)
    for constraint in (
        Constraint.regex(r"(([a-z]{1,20} ){1,40}\n){1,20}"),
        Constraint.json_schema({"type": "array", "items": {"maxLength": 900}, "maxItems": 900}),
        Constraint.choice([f"{number:060}" for number in range(4000)]),
    ):
        assert service.get(constraint).result(LIMIT)


def test_what_is_plain_needs_no_process(
    service: GrammarService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service._checker, "check", None)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert service.get(Constraint.json_schema(schema)).result(LIMIT)
    with pytest.raises(GrammarError, match="colour"):
        service.get(Constraint.json_schema({"type": "colour"})).result(LIMIT)


def test_what_is_stuck_on_a_thread_is_checked_in_a_process_and_nothing_goes_there_any_more(
    service: GrammarService, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, event = list[Constraint](), threading.Event()

    def never(constraint: Constraint, tokenizer: object) -> Verdict:
        stuck.append(constraint)
        event.wait(LIMIT)
        return Verdict()

    monkeypatch.setattr(service_module, "check", never)
    monkeypatch.setattr(service._plain, "_seconds", 0.01)
    first, second = (Constraint.json_schema({"const": number}) for number in (1, 2))
    assert service.get(first).result(LIMIT)
    assert service.get(second).result(LIMIT)
    assert stuck == [first]
    event.set()


class PanicException(BaseException):
    """Stands in for a panic of the grammar engine."""


def test_who_waits_hears_of_a_panic_but_not_what_it_says(
    service: GrammarService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def panic(*args: object, **kwargs: object) -> Verdict:
        raise PanicException("assertion failed: <backtrace>")

    monkeypatch.setattr(service._quick, "check", panic)
    with pytest.raises(EngineError, match=r"failed on the constraint\.$"):
        service.get(Constraint.regex("a")).result(LIMIT)
    monkeypatch.setattr("ramet.runtime.structured.checker.translate", panic)
    error = check(Constraint.json_object(), byte_tokenizer()).error
    assert "cannot take it" in error and "assertion" not in error


def test_a_long_constraint_has_more_time_but_text_alone_buys_little() -> None:
    lengths = [100, 10_000, 60_000, 250_000]
    seconds = [quick_seconds(Constraint.regex("a" * length)) for length in lengths]
    assert seconds[0] == 0.02 < seconds[1] < seconds[2] == seconds[3]


class Lanes:
    """Stand in for the checks of the three lanes: each ends with a limit, and is noted."""

    def __init__(
        self, service: GrammarService, monkeypatch: pytest.MonkeyPatch, *limits: Limit | Verdict
    ) -> None:
        self.asked: list[str] = []
        names = ("_quick", "_thorough", "_patient")
        for name, limit in zip(names, limits, strict=True):
            monkeypatch.setattr(getattr(service, name), "check", self._ending(name, limit))

    def _ending(self, name: str, limit: Limit | Verdict) -> Callable[..., Limit | Verdict]:
        def check(constraint: Constraint, *, check_wanted: Callable[[], None]) -> Limit | Verdict:
            self.asked.append(name)
            return limit

        return check


def test_what_no_core_rests_for_has_a_patient_check(
    service: GrammarService, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = check(Constraint.regex("a"), byte_tokenizer())
    lanes = Lanes(service, monkeypatch, Limit.PROCESSOR, Limit.WALL, sound)
    assert service.get(Constraint.regex("a")).result(LIMIT)
    assert lanes.asked == ["_quick", "_thorough", "_patient"]


def test_what_took_too_much_processor_time_has_none(
    service: GrammarService, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes = Lanes(service, monkeypatch, Limit.PROCESSOR, Limit.PROCESSOR, Limit.WALL)
    with pytest.raises(GrammarError, match="too complex"):
        service.get(Constraint.regex("a")).result(LIMIT)
    assert lanes.asked == ["_quick", "_thorough"]


def test_a_machine_that_is_too_busy_is_not_the_constraints_fault_and_not_remembered(
    service: GrammarService, monkeypatch: pytest.MonkeyPatch
) -> None:
    Lanes(service, monkeypatch, Limit.WALL, Limit.WALL, Limit.WALL)
    first = service.get(Constraint.regex("a", param="regex"))
    with pytest.raises(CapacityError, match="too busy") as caught:
        first.result(LIMIT)
    assert caught.value.param == "regex"
    assert service.get(Constraint.regex("a")) is not first


def test_who_waits_behind_thorough_checks_hears_in_time_that_the_machine_is_too_busy(
    service: GrammarService, monkeypatch: pytest.MonkeyPatch
) -> None:
    Lanes(service, monkeypatch, Limit.PROCESSOR, Limit.PROCESSOR, Limit.PROCESSOR)
    monkeypatch.setattr(service_module, "THOROUGH_SECONDS", -1.0)
    with pytest.raises(CapacityError, match="too busy"):
        service.get(Constraint.regex("a")).result(LIMIT)


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no niceness")
def test_the_steps_go_before_what_is_compiled(service: GrammarService) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    for pool in (service._quick.pool, service._thorough.pool, service._patient.pool):
        seen = pool.submit(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        assert seen.result(LIMIT) == max(own, THREAD_NICENESS)


@pytest.mark.skipif(sys.platform != "linux", reason="needs the kernel's limits")
def test_a_bomb_that_nobody_wants_any_more_is_not_checked_thoroughly(
    service: GrammarService, monkeypatch: pytest.MonkeyPatch
) -> None:
    thorough = Thorough(service, monkeypatch)
    first = service.get(bomb(1))
    assert thorough.begun.get(timeout=LIMIT) == bomb(1)
    second = service.get(bomb(2))
    while not second.running():
        time.sleep(0.001)
    service.leave(bomb(2))
    thorough.event.set()
    with pytest.raises(GrammarError):
        first.result(LIMIT)
    with pytest.raises(EngineError):
        second.result(LIMIT)
    assert thorough.checked == [bomb(1)]
    assert service.get(bomb(2)) is not second, "whoever asks again is served"


class Quick:
    """Stands in for the checks of the quick lane: a bomb's goes on until it is told that its time is over."""

    def __init__(self, service: GrammarService, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: queue.SimpleQueue[Constraint] = queue.SimpleQueue()
        self.over = threading.Semaphore(0)
        monkeypatch.setattr(service._quick, "check", self.check)

    def check(self, constraint: Constraint, *, check_wanted: Callable[[], None]) -> Verdict | Limit:
        self.begun.put(constraint)
        if constraint.kind is ConstraintKind.REGEX:
            return check(constraint, byte_tokenizer())
        assert self.over.acquire(timeout=LIMIT)
        return Limit.PROCESSOR


def test_what_is_cheap_passes_the_bombs_that_are_checked_beside_it(
    service: GrammarService, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick, thorough = Quick(service, monkeypatch), Thorough(service, monkeypatch)
    bombs = [service.get(bomb(number)) for number in range(1, NUM_QUICK)]
    for _ in bombs:
        quick.begun.get(timeout=LIMIT)
    for size in range(1, 4):
        assert service.get(Constraint.regex("a" * size)).result(LIMIT)
    assert thorough.checked == []
    quick.over.release(len(bombs))
    thorough.event.set()
    for future in bombs:
        with pytest.raises(GrammarError):
            future.result(LIMIT)
    assert len(thorough.checked) == len(bombs)


def test_behind_as_many_bombs_as_are_checked_at_once_one_waits_for_the_first_to_be_over(
    service: GrammarService, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick, thorough = Quick(service, monkeypatch), Thorough(service, monkeypatch)
    for number in range(1, NUM_QUICK + 1):
        service.get(bomb(number))
    for _ in range(NUM_QUICK):
        quick.begun.get(timeout=LIMIT)
    cheap = service.get(Constraint.regex("a"))
    assert quick.begun.empty() and not cheap.running()
    quick.over.release()
    assert cheap.result(LIMIT)
    assert thorough.begun.get(timeout=LIMIT).kind is ConstraintKind.JSON_SCHEMA
    quick.over.release(NUM_QUICK)
    thorough.event.set()


def test_who_waits_when_the_service_closes_hears_of_it(
    held: tuple[GrammarService, threading.Event],
) -> None:
    service, event = held
    futures = [service.get(Constraint.regex("a" * size)) for size in range(1, NUM_QUICK + 4)]
    service.close()
    event.set()
    for future in futures:
        with suppress(CancelledError, EngineError):
            assert future.result(LIMIT)
    assert futures[-1].cancelled()


def test_what_is_stuck_keeps_no_process_from_ending() -> None:
    program = """if True:
        import threading
        from ramet.runtime.structured.threads import Threads, start
        begun = threading.Semaphore(0)
        def never():
            begun.release()
            threading.Event().wait()
        threads = Threads(1, "stuck")
        threads.submit(never)
        start(never, "stuck")
        begun.acquire(), begun.acquire()
    """
    done = subprocess.run([sys.executable, "-c", program], timeout=LIMIT, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_closed_service_compiles_nothing(vocabulary: Vocabulary) -> None:
    service = GrammarService(lambda: vocabulary)
    service.get(Constraint.regex("a")).result(LIMIT)
    service.close()
    service.close()
    with pytest.raises(RuntimeError):
        service.get(Constraint.regex("b"))


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        (Constraint.json_schema({"$ref": "#"}), "no text can match"),
        (Constraint.regex("a[^\\s\\S]"), "no text can match"),
        (Constraint.json_schema("[]"), "must be a JSON object"),
        (Constraint.json_schema({"type": "colour"}), "colour"),
        (Constraint.json_schema({"type": "object", "required": "b"}), "required"),
        (Constraint.json_schema({"type": "string", "pattern": "[a"}), "regex"),
        (Constraint.json_schema({"enum": []}), "nsatisfiable"),
        (Constraint.json_schema({"type": "integer", "minimum": 2, "maximum": 1}), "nsatisfiable"),
    ],
)
def test_the_check_finds_what_compiling_alone_does_not(constraint: Constraint, words: str) -> None:
    assert words in check(constraint, byte_tokenizer()).error


def test_what_passes_the_check_comes_back_as_a_grammar() -> None:
    verdict = check(Constraint.choice(["a"]), byte_tokenizer())
    assert verdict.grammar and not verdict.error
