"""The sampler as a whole: order of the steps, independence of the rows, bookkeeping."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ramet.runtime.errors import InvalidRequest
from ramet.runtime.execution.randomness import MASK, uniform
from ramet.runtime.execution.sampler import NO_TOKEN, SampledTokens, Sampler
from ramet.runtime.request import SamplingParams, TokenLogprobs

VOCAB = 40
EOS = 5
PROMPT = [1, 2, 2, 3]


def make_sampler(vocab_size: int = VOCAB) -> Sampler:
    return Sampler(vocab_size, torch.device("cpu"), (EOS,))


def add(sampler: Sampler, request_id: str, seed: int = 0, **params: Any) -> None:
    sampler.add(request_id, SamplingParams(**params), np.array(PROMPT, np.int32), seed)


def step_logits(step: int, num_rows: int, vocab_size: int = VOCAB) -> torch.Tensor:
    """Row r of a step is the same however many rows there are."""
    rows = [np.random.default_rng([step, row]).normal(0, 2, vocab_size) for row in range(num_rows)]
    return torch.from_numpy(np.array(rows, dtype=np.float32))


def adjusted(
    logits: NDArray[np.float64], params: SamplingParams, output: list[int]
) -> NDArray[np.float64]:
    """What a request's choice is made from, one logit at a time."""
    result = logits.copy()
    for id_ in range(len(result)):
        count = output.count(id_)
        if id_ in PROMPT or count:
            factor = params.repetition_penalty
            result[id_] = result[id_] / factor if result[id_] > 0 else result[id_] * factor
        result[id_] -= count * params.frequency_penalty + (count > 0) * params.presence_penalty
        result[id_] += params.logit_bias.get(id_, 0.0)
        ends = id_ in params.stop_token_ids or (id_ == EOS and not params.ignore_eos)
        if ends and len(output) < params.min_tokens:
            result[id_] = -math.inf
    return result


def interval(
    logits: NDArray[np.float64], params: SamplingParams, token_id: int
) -> tuple[float, float] | None:
    """The token's share of [0, 1), or None if the cuts leave it out."""
    order = sorted(range(len(logits)), key=lambda id_: (-logits[id_], id_))
    top_k = params.top_k if 0 < params.top_k < len(logits) else len(logits)
    weights = np.exp((logits - logits.max()) / params.temperature)
    kept, before = [], 0.0
    total = sum(weights[id_] for id_ in order[:top_k])
    top_p = params.top_p if params.top_p < 1.0 else math.inf
    for id_ in order[:top_k]:
        if before < top_p * total and weights[id_] >= params.min_p:
            kept.append(id_)
        before += weights[id_]
    if top_k == len(logits) and params.top_p == 1.0:
        kept.sort()
    if token_id not in kept:
        return None
    edges = np.cumsum([0.0, *(weights[id_] for id_ in kept)])
    place = kept.index(token_id)
    return edges[place] / edges[-1], edges[place + 1] / edges[-1]


PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.4, 1.0, 2.0]),
        "top_k": st.sampled_from([-1, 0, 1, 3, VOCAB - 1, VOCAB, 10 * VOCAB]),
        "top_p": st.sampled_from([0.05, 0.6, 0.95]),
        "min_p": st.sampled_from([0.05, 0.5]),
        "presence_penalty": st.sampled_from([-1.0, 1.5]),
        "frequency_penalty": st.sampled_from([-1.0, 0.8]),
        "repetition_penalty": st.sampled_from([0.7, 1.4]),
        "logit_bias": st.dictionaries(
            st.integers(0, VOCAB - 1), st.sampled_from([-100.0, -1.0, 3.0, 100.0]), max_size=3
        ),
        "min_tokens": st.integers(0, 4),
        "stop_token_ids": st.lists(st.integers(0, VOCAB - 1), max_size=3).map(tuple),
        "ignore_eos": st.booleans(),
        "logprobs": st.integers(0, 4),
    },
)


@settings(deadline=None, max_examples=120)
@given(requests=st.lists(PARAMS, min_size=1, max_size=8), seed=st.integers(-(2**63), 2**64 - 1))
def test_every_row_follows_its_own_parameters(requests: list[dict[str, Any]], seed: int) -> None:
    sampler = make_sampler()
    for row, fields in enumerate(requests):
        add(sampler, str(row), seed + row, **fields)
    outputs: list[list[int]] = [[] for _ in requests]
    for step in range(5):
        logits = step_logits(step, len(requests))
        before = logits.clone()
        sampled = sampler.sample(logits, [str(row) for row in range(len(requests))])
        assert torch.equal(logits, before)
        assert sampled.errors == {}
        for row, token_id in enumerate(sampled.token_ids):
            params = SamplingParams(**requests[row])
            choice = adjusted(logits[row].double().numpy(), params, outputs[row])
            if params.temperature == 0.0 or params.top_k == 1:
                assert choice[token_id] >= choice.max() - 1e-4
            else:
                number = uniform(
                    np.array([(seed + row) & MASK], np.uint64), np.array([step], np.uint64)
                )
                share = interval(choice, params, token_id)
                assert share is not None
                assert share[0] - 1e-4 <= number[0] <= share[1] + 1e-4
            check_logprobs(sampled.logprobs[row], params, logits[row], token_id)
            outputs[row].append(token_id)


def check_logprobs(
    entry: TokenLogprobs | None, params: SamplingParams, logits: torch.Tensor, token_id: int
) -> None:
    if params.logprobs is None:
        assert entry is None
        return
    assert entry is not None
    raw = torch.log_softmax(logits.double(), dim=-1)
    assert entry.token_id == token_id
    assert entry.logprob == pytest.approx(raw[token_id].item(), abs=1e-5)
    assert entry.top_ids == tuple(raw.topk(params.logprobs).indices.tolist())


MIXED: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.5},
    {"top_k": 7},
    {"top_k": 1},
    {"top_p": 0.8, "temperature": 0.9},
    {"top_k": 500, "top_p": 0.97, "logprobs": 5},
    {"min_p": 0.1, "presence_penalty": 1.0, "frequency_penalty": 0.5},
    {"repetition_penalty": 1.3, "temperature": 0.0, "logprobs": 0},
    {"logit_bias": {3: 4.0, 900: -100.0}, "min_p": 0.01},
    {"min_tokens": 6, "stop_token_ids": (8, 9), "logit_bias": {EOS: 100.0}},
    {"temperature": 2.0, "top_p": 0.999, "repetition_penalty": 0.8},
    {"top_k": 3, "logprobs": 2},
]


def run(rows: list[int], *, steps: int = 8, gaps: bool = False) -> dict[int, list[object]]:
    """Sample some of the MIXED requests together; with gaps, each misses some of the steps."""
    sampler = make_sampler(1003)
    history: dict[int, list[object]] = {row: [] for row in rows}
    for row in rows:
        add(sampler, f"request-{row}", seed=row, **MIXED[row])
    for turn in range(3 * steps if gaps else steps):
        running = [
            row
            for row in rows
            if len(history[row]) < steps and not (gaps and (turn + row) % 3 == 0)
        ]
        logits = [step_logits(len(history[row]), row + 1, 1003)[row] for row in running]
        if not logits:
            continue
        sampled = sampler.sample(torch.stack(logits), [f"request-{row}" for row in running])
        for row, *result in zip(running, sampled.token_ids, sampled.logprobs, strict=True):
            history[row].append(tuple(result))
    return history


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_request_alone_and_in_any_batch_samples_the_same_to_the_bit(num_threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        together = run(list(range(len(MIXED))))
        for row in range(len(MIXED)):
            assert run([row])[row] == together[row]
        shuffled = np.random.default_rng(0).permutation(len(MIXED)).tolist()
        assert run(shuffled) == together
    finally:
        torch.set_num_threads(before)


def test_a_request_that_misses_steps_samples_the_same() -> None:
    everything = list(range(len(MIXED)))
    assert run(everything, gaps=True) == run(everything)


@pytest.mark.parametrize("seed", [-(2**63), -1, 0, 2**64 - 1])
def test_the_seed_decides(seed: int) -> None:
    def tokens(seed: int) -> list[int]:
        sampler = make_sampler()
        add(sampler, "a", seed, temperature=1.0)
        return [sampler.sample(step_logits(0, 1), ["a"]).token_ids[0] for _ in range(40)]

    assert tokens(seed) == tokens(seed) == tokens(seed & MASK)
    assert tokens(seed) != tokens(seed - 1)


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({}, [0.4, 0.3, 0.15, 0.1, 0.05]),
        ({"top_k": 3}, [0.4, 0.3, 0.15]),
        ({"top_p": 0.8}, [0.4, 0.3, 0.15]),
        ({"min_p": 0.3}, [0.4, 0.3, 0.15]),
        ({"top_k": 4, "top_p": 0.7, "min_p": 0.1}, [0.4, 0.3]),
        ({"temperature": 0.5}, [0.16, 0.09, 0.0225, 0.01, 0.0025]),
    ],
)
def test_tokens_come_as_often_as_they_should(params: dict[str, Any], kept: list[float]) -> None:
    """Chi-square, at most 4 degrees of freedom: above 23.5 with probability 1e-4; seeds are fixed."""
    num_rows, num_steps = 500, 20
    sampler = make_sampler(5)
    ids = [str(row) for row in range(num_rows)]
    for row, request_id in enumerate(ids):
        sampler.add(request_id, SamplingParams(**params), np.array([0], np.int32), row)
    logits = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05]).log().repeat(num_rows, 1)
    drawn = [sampler.sample(logits, ids).token_ids for _ in range(num_steps)]
    counts = np.bincount(np.ravel(drawn), minlength=5)
    expected = np.array(kept) / sum(kept) * num_rows * num_steps
    assert counts[len(kept) :].sum() == 0
    assert ((counts[: len(kept)] - expected) ** 2 / expected).sum() < 23.5


def test_equal_logits_choose_the_lowest_id() -> None:
    sampler = make_sampler()
    add(sampler, "zero", temperature=0.0)
    add(sampler, "one", top_k=1, temperature=2.0)
    logits = torch.zeros(2, VOCAB)
    logits[:, [7, 9, 30]] = 1.0
    assert sampler.sample(logits, ["zero", "one"]).token_ids == [7, 7]


def test_end_and_stop_tokens_are_banned_before_min_tokens() -> None:
    sampler = make_sampler()
    add(sampler, "a", temperature=0.0, min_tokens=2, stop_token_ids=(6,))
    add(sampler, "b", temperature=0.0, min_tokens=2, stop_token_ids=(6,), ignore_eos=True)
    logits = torch.zeros(2, VOCAB)
    logits[:, EOS], logits[:, 6], logits[:, 7] = 3.0, 2.0, 1.0
    steps = [sampler.sample(logits, ["a", "b"]).token_ids for _ in range(3)]
    assert steps == [[7, 5], [7, 5], [5, 5]]


def test_the_ban_outweighs_the_bias() -> None:
    sampler = make_sampler()
    add(sampler, "a", temperature=0.0, min_tokens=1, logit_bias={EOS: 100.0, 9: 50.0})
    logits = torch.zeros(1, VOCAB)
    assert sampler.sample(logits, ["a"]).token_ids == [9]
    assert sampler.sample(logits, ["a"]).token_ids == [EOS]


def test_logprobs_are_of_the_untouched_logits() -> None:
    sampler = make_sampler()
    add(sampler, "a", temperature=0.5, logit_bias={4: 100.0}, presence_penalty=2.0, logprobs=1)
    entry = sampler.sample(torch.zeros(1, VOCAB), ["a"]).logprobs[0]
    assert entry is not None
    assert entry.logprob == pytest.approx(-math.log(VOCAB))
    assert entry == TokenLogprobs(4, entry.logprob, 5, (0,), (entry.logprob,))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_broken_row_is_reported_and_disturbs_no_other(bad: float, temperature: float) -> None:
    def sample(logits: torch.Tensor) -> SampledTokens:
        sampler = make_sampler()
        for row, request_id in enumerate("abc"):
            add(
                sampler,
                request_id,
                row,
                temperature=temperature,
                frequency_penalty=0.5,
                logprobs=1,
            )
        return sampler.sample(logits, "abc")

    broken = step_logits(0, 3)
    broken[1, 17] = bad
    first = sample(broken)
    whole = sample(step_logits(0, 3))
    assert list(first.errors) == [1] and "not finite" in first.errors[1]
    assert first.token_ids == [whole.token_ids[0], NO_TOKEN, whole.token_ids[2]]
    assert first.logprobs == [whole.logprobs[0], None, whole.logprobs[2]]


def test_a_row_with_nothing_left_to_choose_is_reported() -> None:
    sampler = make_sampler()
    add(sampler, "a")
    assert list(sampler.sample(torch.full((1, VOCAB), -math.inf), ["a"]).errors) == [0]


def test_a_failed_row_counts_nothing() -> None:
    sampler = make_sampler()
    for request_id in "ab":
        add(sampler, request_id, seed=9, frequency_penalty=1.0)
    sampler.sample(torch.full((1, VOCAB), math.nan), ["a"])
    for step in range(5):
        sampled = sampler.sample(step_logits(step, 1).repeat(2, 1), ["a", "b"])
        assert sampled.token_ids[0] == sampled.token_ids[1]


def test_removed_requests_leave_nothing_to_later_ones() -> None:
    sampler = make_sampler()
    biased = [row for row in range(VOCAB) if row != EOS]
    for turn in range(3):
        for row in biased:
            add(
                sampler,
                f"{turn}-{row}",
                logit_bias={row: 100.0},
                min_tokens=3,
                presence_penalty=2.0,
                logprobs=1,
            )
        ids = [f"{turn}-{row}" for row in biased]
        assert sampler.sample(torch.zeros(len(ids), VOCAB), ids).token_ids == biased
        for request_id in ids:
            sampler.remove(request_id)
    add(sampler, "plain", seed=3)
    fresh = make_sampler()
    add(fresh, "plain", seed=3)
    logits = step_logits(0, 1)
    assert sampler.sample(logits, ["plain"]) == fresh.sample(logits, ["plain"])


def test_an_empty_step_samples_nothing() -> None:
    assert make_sampler().sample(torch.zeros(0, VOCAB), []) == SampledTokens([], [])


def test_end_tokens_outside_the_vocabulary_never_come_up() -> None:
    sampler = Sampler(VOCAB, torch.device("cpu"), (VOCAB + 3,))
    add(sampler, "a", min_tokens=2, temperature=0.0)
    assert sampler.sample(torch.zeros(1, VOCAB), ["a"]).token_ids == [0]


def test_adding_a_request_twice_raises() -> None:
    sampler = make_sampler()
    add(sampler, "a")
    with pytest.raises(ValueError, match="'a' was added before"):
        add(sampler, "a")


def test_ids_outside_the_vocabulary_are_refused_and_leave_no_trace() -> None:
    sampler = make_sampler()
    with pytest.raises(InvalidRequest, match="logit_bias has token id 40"):
        add(sampler, "a", logit_bias={VOCAB: 1.0})
    with pytest.raises(ValueError, match="outside the vocabulary"):
        sampler.add("a", SamplingParams(presence_penalty=1.0), np.array([-1], np.int32), 0)
    add(sampler, "a")
    assert sampler.sample(torch.zeros(1, VOCAB), ["a"]).errors == {}


def test_unknown_requests_raise() -> None:
    sampler = make_sampler()
    with pytest.raises(KeyError):
        sampler.sample(torch.zeros(1, VOCAB), ["nobody"])
    with pytest.raises(KeyError):
        sampler.remove("nobody")


@pytest.mark.parametrize(
    "logits",
    [
        torch.zeros(1, VOCAB + 1),
        torch.zeros(2, VOCAB),
        torch.zeros(VOCAB),
        torch.zeros(1, VOCAB, dtype=torch.bfloat16),
    ],
)
def test_logits_of_another_form_raise(logits: torch.Tensor) -> None:
    sampler = make_sampler()
    add(sampler, "a")
    with pytest.raises(ValueError, match="logits must be"):
        sampler.sample(logits, ["a"])


def test_a_request_twice_in_one_step_raises() -> None:
    sampler = make_sampler()
    add(sampler, "a")
    with pytest.raises(ValueError, match="twice"):
        sampler.sample(torch.zeros(2, VOCAB), ["a", "a"])


def test_steps_inside_and_outside_of_inference_mode_may_follow_each_other() -> None:
    sampler, outside = make_sampler(), make_sampler()
    expected = []
    for each in (sampler, outside):
        with torch.inference_mode(each is sampler):
            add(each, "a", frequency_penalty=1.0, logit_bias={3: 1.0})
    for step in range(4):
        with torch.inference_mode(step % 2 == 0):
            logits = step_logits(step, 1)
            expected.append(outside.sample(logits, ["a"]).token_ids)
            assert sampler.sample(logits, ["a"]).token_ids == expected[-1]


def test_a_plain_greedy_step_does_no_more_than_find_the_highest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("not needed for a plain greedy step")

    sampler = make_sampler()
    for request_id in "ab":
        add(sampler, request_id, temperature=0.0)
    for name in ("softmax", "log_softmax", "sort", "topk"):
        monkeypatch.setattr(torch, name, fail)
    monkeypatch.setattr(torch.Tensor, "clone", fail)
    monkeypatch.setattr(np, "sort", fail)
    logits = step_logits(0, 2)
    assert sampler.sample(logits, "ab").token_ids == logits.numpy().argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_masked_rows_take_what_is_legal_and_the_others_are_as_without(temperature: float) -> None:
    legal = np.zeros((2, VOCAB), dtype=np.bool_)
    legal[0, [4, 9]] = legal[1, [30]] = True
    plain, masked = make_sampler(), make_sampler()
    for sampler in (plain, masked):
        for row in range(4):
            add(sampler, str(row), seed=row, temperature=temperature, logit_bias={7: 100.0})
    for step in range(8):
        logits = step_logits(step, 4)
        before = logits.clone()
        ids = [str(row) for row in range(4)]
        free = plain.sample(logits, ids).token_ids
        held = masked.sample(logits, ids, ([1, 3], legal)).token_ids
        assert held[1] in (4, 9) and held[3] == 30
        assert (held[0], held[2]) == (free[0], free[2])
        assert torch.equal(logits, before)


def test_a_mask_of_all_rows_is_applied_and_an_empty_one_is_an_error_of_its_row() -> None:
    sampler = make_sampler()
    add(sampler, "a")
    add(sampler, "b")
    legal = np.zeros((2, VOCAB), dtype=np.bool_)
    legal[0, 3] = True
    result = sampler.sample(step_logits(0, 2), ["a", "b"], ([0, 1], legal))
    assert result.token_ids == [3, NO_TOKEN] and list(result.errors) == [1]


def test_forced_tokens_count_as_if_they_had_been_sampled() -> None:
    params: dict[str, Any] = {"frequency_penalty": 0.7, "temperature": 1.0}
    told, asked = make_sampler(), make_sampler()
    for sampler in (told, asked):
        add(sampler, "x", seed=3, **params)
    only = np.zeros((1, VOCAB), dtype=np.bool_)
    only[0, 11] = True
    for _ in range(2):
        asked.sample(step_logits(0, 1), ["x"], ([0], only))
    told.record_forced("x", [11, 11])
    for step in range(1, 6):
        logits = step_logits(step, 1)
        assert told.sample(logits, ["x"]).token_ids == asked.sample(logits, ["x"]).token_ids
