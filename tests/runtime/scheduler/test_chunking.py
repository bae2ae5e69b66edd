from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.scheduler.chunking import MIN_CHUNK, StepTimeModel, split_budget


@given(st.lists(st.integers(1, 500), max_size=12), st.integers(0, 600))
def test_a_budget_is_spent_exactly_and_never_beyond_what_a_prompt_needs(
    remaining: list[int], budget: int
) -> None:
    shares = split_budget(remaining, budget)
    assert all(0 <= share <= need for share, need in zip(shares, remaining, strict=True))
    assert sum(shares) == min(budget, sum(remaining))


@given(st.lists(st.integers(1, 500), min_size=1, max_size=12), st.integers(1, 600))
def test_the_oldest_prompt_always_gets_half(remaining: list[int], budget: int) -> None:
    assert split_budget(remaining, budget)[0] >= min(remaining[0], budget / 2)


def test_short_prompts_are_finished_beside_the_oldest_and_long_ones_wait() -> None:
    assert split_budget([100, 50, 5, 20], 40) == [35, 0, 5, 0]
    assert split_budget([100, 50, 5, 13], 40) == [22, 0, 5, 13]


def test_what_is_left_goes_by_age() -> None:
    assert split_budget([10, 50, 30], 40) == [10, 30, 0]


def test_a_prompt_alone_gets_everything() -> None:
    assert split_budget([1000], 64) == [64]


def test_the_time_model_knows_nothing_before_the_first_prefill() -> None:
    model = StepTimeModel()
    model.observe(0.01, num_decodes=4, num_prefill_tokens=0)
    assert model.prefill_tokens_within(1.0) is None


def test_the_time_model_takes_the_cost_of_decodes_off_mixed_steps() -> None:
    model = StepTimeModel()
    model.observe(0.02, num_decodes=4, num_prefill_tokens=0)
    model.observe(0.12, num_decodes=4, num_prefill_tokens=100)
    assert model.prefill_tokens_within(0.07) == 49 or model.prefill_tokens_within(0.07) == 50


def test_prompts_move_on_even_where_decodes_alone_miss_the_target() -> None:
    model = StepTimeModel()
    model.observe(0.5, num_decodes=4, num_prefill_tokens=0)
    model.observe(1.0, num_decodes=4, num_prefill_tokens=100)
    assert model.prefill_tokens_within(0.1) == MIN_CHUNK
