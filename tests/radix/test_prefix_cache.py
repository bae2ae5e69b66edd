from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest
from numpy.typing import NDArray

from ramet.radix import PrefixCache

Tokens = Callable[[Iterable[int]], NDArray[np.int32]]
Serve = Callable[..., list[int]]


def take(cache: PrefixCache, num_blocks: int) -> list[int]:
    blocks = cache.allocate(num_blocks)
    assert blocks is not None
    return blocks


@pytest.mark.parametrize(
    ("num_blocks", "block_size", "policy"), [(0, 4, "lru"), (4, 0, "lru"), (4, 4, "mru")]
)
def test_impossible_configuration_raises(num_blocks: int, block_size: int, policy: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        PrefixCache(num_blocks, block_size, eviction_policy=policy)


@pytest.mark.parametrize("length", range(1, 50))
def test_every_length_is_found_to_the_token(length: int, tokens: Tokens, serve: Serve) -> None:
    cache = PrefixCache(8, 16)
    prompt = tokens(range(length))
    serve(cache, prompt)
    assert cache.match(prompt) == length
    for _ in range(3):
        handle = cache.acquire(prompt, max_tokens=length - 1)
        assert handle.num_tokens + handle.tail_len == length - 1
        assert len(handle.block_ids) * 16 == handle.num_tokens
        assert (handle.tail_block is None) == (handle.tail_len == 0)
        cache.release(handle)
        cache.check_integrity()
    assert cache.num_free + cache.num_evictable == cache.num_blocks
    assert all(len(node.tokens) for node in cache._tree.nodes())


def test_next_turn_hits_prompt_and_output(tokens: Tokens, serve: Serve) -> None:
    cache = PrefixCache(16, 4)
    serve(cache, range(11))
    serve(cache, range(19))
    handle = cache.acquire(tokens([*range(19), 77, 78]), max_tokens=20)
    assert handle.num_tokens + handle.tail_len == 19


def test_prompts_that_differ_at_the_first_token_share_nothing(tokens: Tokens, serve: Serve) -> None:
    cache = PrefixCache(8, 4)
    serve(cache, [1, 2, 3, 4, 5])
    assert cache.match(tokens([2, 2, 3, 4, 5])) == 0
    assert cache.match(tokens([])) == 0


def test_namespaces_never_mix(tokens: Tokens, serve: Serve) -> None:
    cache = PrefixCache(16, 4)
    prompt = tokens(range(10))
    serve(cache, prompt, "a")
    assert cache.match(prompt, "a") == 10
    assert cache.match(prompt, "b") == cache.match(prompt) == 0
    handle = cache.acquire(prompt, "b", max_tokens=10)
    assert (handle.num_tokens, handle.tail_len) == (0, 0)
    assert set(serve(cache, prompt, "b")).isdisjoint(serve(cache, prompt, "a"))


def test_namespaces_without_content_are_forgotten(tokens: Tokens, serve: Serve) -> None:
    cache = PrefixCache(4, 4)
    for number in range(100):
        serve(cache, range(7), f"key-{number}")
        cache.match(tokens(range(3)), f"other-{number}")
        cache.release(cache.acquire(tokens([9]), f"empty-{number}", max_tokens=1))
    assert cache.stats.num_namespaces == 2
    cache.reset()
    assert cache.stats.num_namespaces == 0


def test_match_changes_nothing(tokens: Tokens, serve: Serve) -> None:
    cache = PrefixCache(4, 4)
    serve(cache, range(8))
    serve(cache, [50, 51, 52, 53])
    before = (cache.stats, cache.generation, cache.num_available)
    assert cache.match(tokens(range(6))) == 6
    assert (cache.stats, cache.generation, cache.num_available) == before
    take(cache, 2)
    # The older prompt goes first although it was matched last.
    assert cache.match(tokens(range(8))) == 4


def test_generation_changes_with_insertion_and_eviction_only(tokens: Tokens, serve: Serve) -> None:
    cache = PrefixCache(4, 4)
    prompt = tokens(range(8))
    start = cache.generation
    serve(cache, prompt)
    inserted = cache.generation
    assert inserted != start
    cache.release(cache.acquire(prompt, max_tokens=5))
    cache.free(take(cache, 2))
    assert cache.generation == inserted
    take(cache, 3)
    assert cache.generation != inserted


def test_acquire_splits_at_most_one_node(tokens: Tokens, serve: Serve) -> None:
    cache = PrefixCache(8, 4)
    serve(cache, range(16))
    before = cache.stats.num_nodes
    handle = cache.acquire(tokens(range(16)), max_tokens=10)
    assert (handle.num_tokens, handle.tail_len) == (8, 2)
    assert cache.stats.num_nodes == before + 1
    cache.acquire(tokens(range(16)), max_tokens=10)
    assert cache.stats.num_nodes == before + 1


@pytest.mark.parametrize("bad", [[1, 2], np.array([1, 2]), np.zeros((1, 2), np.int32)])
def test_tokens_of_another_type_raise(bad: NDArray[np.int32]) -> None:
    cache = PrefixCache(4, 4)
    handle = cache.acquire(np.array([1], np.int32), max_tokens=0)
    with pytest.raises(TypeError, match="int32"):
        cache.match(bad)
    with pytest.raises(TypeError, match="int32"):
        cache.acquire(bad, max_tokens=1)
    with pytest.raises(TypeError, match="int32"):
        cache.commit(handle, bad, [], num_tokens=0)


def test_negative_arguments_raise(tokens: Tokens) -> None:
    cache = PrefixCache(4, 4)
    with pytest.raises(ValueError, match="max_tokens"):
        cache.acquire(tokens([1]), max_tokens=-1)
    with pytest.raises(ValueError, match="num_blocks"):
        cache.allocate(-1)


def test_release_twice_raises(tokens: Tokens) -> None:
    cache = PrefixCache(4, 4)
    handle = cache.acquire(tokens([1]), max_tokens=0)
    cache.release(handle)
    with pytest.raises(ValueError, match="released"):
        cache.release(handle)
    cache.check_integrity()


def test_committed_handle_cannot_be_used_again(tokens: Tokens) -> None:
    cache = PrefixCache(4, 4)
    prompt = tokens(range(4))
    handle = cache.acquire(prompt, max_tokens=3)
    table = take(cache, 1)
    cache.commit(handle, prompt, table, num_tokens=4)
    with pytest.raises(ValueError, match="released"):
        cache.release(handle)
    with pytest.raises(ValueError, match="released"):
        cache.commit(handle, prompt, table, num_tokens=4)


def test_bad_commit_raises_and_changes_nothing(tokens: Tokens, serve: Serve) -> None:
    cache = PrefixCache(8, 4)
    serve(cache, range(8))
    prompt = tokens(range(20))
    handle = cache.acquire(prompt, max_tokens=8)
    table = handle.block_ids + take(cache, 2)
    before = (cache.stats, cache.num_private)
    for bad_table, num_tokens, message in [
        (table, 7, "num_tokens"),
        (table, 17, "num_tokens"),
        (table, 21, "num_tokens"),
        ([table[1], table[0], *table[2:]], 12, "blocks of the handle"),
        ([*table[:2], 7], 12, "not privately held"),
        ([*table[:2], 8], 12, "not one of"),
        ([*table[:3], table[2]], 16, "twice"),
    ]:
        with pytest.raises(ValueError, match=message):
            cache.commit(handle, prompt, list(bad_table), num_tokens=num_tokens)
    assert (cache.stats, cache.num_private) == before
    handle = cache.commit(handle, prompt, table, num_tokens=16)
    assert handle.num_tokens == 16


def test_bad_free_raises_and_frees_nothing(serve: Serve) -> None:
    cache = PrefixCache(8, 4)
    cached = serve(cache, range(8))
    block, other = take(cache, 2)
    for bad in ([block, cached[0]], [block, block], [block, -1], [block, 8]):
        with pytest.raises(ValueError, match="block"):
            cache.free(bad)
        assert cache.num_private == 2
    cache.free([block, other])
    with pytest.raises(ValueError, match="not privately held"):
        cache.free([block])


def test_allocate_is_all_or_nothing(tokens: Tokens, serve: Serve) -> None:
    cache = PrefixCache(6, 4)
    serve(cache, range(16))
    pinned = cache.acquire(tokens(range(16)), max_tokens=8)
    assert cache.num_available == 4
    assert cache.allocate(5) is None
    assert cache.match(tokens(range(16))) == 16
    assert cache.stats.evicted_blocks == 0
    assert len(take(cache, 4)) == 4
    assert cache.match(tokens(range(16))) == 8
    assert cache.stats.evicted_blocks == 2
    assert cache.stats.evicted_tokens == 8
    assert cache.allocate(0) == []
    cache.release(pinned)
    cache.check_integrity()


def test_duplicates_are_replaced_in_the_table_and_given_back(tokens: Tokens) -> None:
    cache = PrefixCache(16, 4)
    prompt = tokens(range(10))
    handles = [cache.acquire(prompt, max_tokens=9) for _ in range(3)]
    tables = [take(cache, 3) for _ in handles]
    tails = [table[2] for table in tables]
    handles = [
        cache.commit(handle, prompt, table, num_tokens=10)
        for handle, table in zip(handles, tables, strict=True)
    ]
    assert tables[0][:2] == tables[1][:2] == tables[2][:2]
    assert [table[2] for table in tables] == tails
    assert cache.stats.deduplicated_blocks == 4
    assert cache.num_free == 16 - 2 - 3
    # What was given back is handed out again, and no table refers to it.
    assert set(take(cache, cache.num_available)).isdisjoint(set().union(*tables))
    for handle, table in zip(handles, tables, strict=True):
        cache.release(handle)
        cache.free(table[2:])
    cache.check_integrity()


def test_partial_tail_stays_with_its_writer(tokens: Tokens) -> None:
    cache = PrefixCache(4, 4)
    prompt = tokens(range(12))
    handle = cache.acquire(prompt, max_tokens=11)
    table = take(cache, 2)
    handle = cache.commit(handle, prompt, table, num_tokens=6)
    assert handle.block_ids == table[:1]
    assert (cache.num_cached, cache.num_private, cache.num_evictable) == (2, 0, 0)
    # Its node can go; the block cannot, since its owner still writes to it.
    others = take(cache, 2)
    assert cache.allocate(1) is None
    cache.free(others)
    handle = cache.commit(handle, prompt, table, num_tokens=8)
    assert handle.block_ids == table
    cache.release(handle)
    with pytest.raises(ValueError, match="privately"):
        cache.free(table[1:])
    assert cache.match(prompt) == 8


def test_forks_share_every_full_block_and_copy_the_last(tokens: Tokens) -> None:
    cache = PrefixCache(64, 4)
    prompt = tokens(range(18))
    leader = cache.acquire(prompt, max_tokens=17)
    table = take(cache, 5)
    leader = cache.commit(leader, prompt, table, num_tokens=17)
    forks = [cache.acquire(prompt, max_tokens=17) for _ in range(8)]
    assert all(fork.block_ids == table[:4] for fork in forks)
    assert all((fork.tail_block, fork.tail_len) == (table[4], 1) for fork in forks)
    assert cache.num_cached == 5


def test_a_growing_sequence_stays_one_short_path(tokens: Tokens) -> None:
    cache = PrefixCache(512, 4)
    prompt = tokens(range(2000))
    handle = cache.acquire(prompt, max_tokens=1999)
    table: list[int] = []
    for num_tokens in range(3, 2000, 7):
        table += take(cache, -(-num_tokens // 4) - len(table))
        handle = cache.commit(handle, prompt, table, num_tokens=num_tokens)
    cache.check_integrity()
    assert handle.block_ids == table[: handle.num_tokens // 4]
    assert cache.stats.num_nodes <= 4
    assert cache.stats.inserted_tokens == cache.match(prompt) == num_tokens


def test_growing_past_a_fork_keeps_the_fork(tokens: Tokens) -> None:
    cache = PrefixCache(64, 4)
    prompt = tokens(range(40))
    handle = cache.acquire(prompt, max_tokens=39)
    table = take(cache, 10)
    handle = cache.commit(handle, prompt, table, num_tokens=10)
    other = cache.acquire(prompt, max_tokens=8)
    handle = cache.commit(handle, prompt, table, num_tokens=40)
    cache.check_integrity()
    cache.release(handle)
    take(cache, cache.num_available)
    assert cache.match(prompt) == other.num_tokens == 8
    cache.check_integrity()


def test_statistics_count_only_what_is_asked(tokens: Tokens, serve: Serve) -> None:
    cache = PrefixCache(8, 4)
    serve(cache, range(10))
    cache.release(cache.acquire(tokens(range(12)), max_tokens=11, count=False))
    assert (cache.stats.num_queries, cache.stats.queried_tokens) == (1, 10)
    cache.release(cache.acquire(tokens(range(12)), max_tokens=11))
    stats = cache.stats
    assert (stats.num_queries, stats.queried_tokens, stats.hit_tokens) == (2, 22, 10)
    assert (stats.inserted_tokens, stats.num_tokens) == (10, 10)


def test_reset_drops_all_that_is_not_pinned(tokens: Tokens, serve: Serve) -> None:
    cache = PrefixCache(16, 4)
    serve(cache, range(16))
    serve(cache, [*range(6), 90, 91, 92])
    handle = cache.acquire(tokens(range(16)), max_tokens=9)
    cached = cache.num_cached
    assert cache.reset() == cached - 2
    assert cache.match(tokens(range(16))) == 8
    assert cache.stats.evicted_blocks == 0
    cache.check_integrity()
    cache.release(handle)
    assert cache.reset() == 2
    assert cache.num_free == 16


def test_disabled_cache_only_allocates(tokens: Tokens) -> None:
    cache = PrefixCache(8, 4, enabled=False)
    prompt = tokens(range(12))
    handle = cache.acquire(prompt, max_tokens=11)
    assert (handle.num_tokens, handle.block_ids, handle.tail_block) == (0, [], None)
    table = take(cache, 3)
    before = list(table)
    handle = cache.commit(handle, prompt, table, num_tokens=12)
    assert handle.num_tokens == 0
    assert table == before
    assert cache.match(prompt) == cache.num_cached == cache.generation == 0
    assert cache.num_private == 3
    cache.release(handle)
    cache.free(table)
    assert cache.num_free == 8
    cache.check_integrity()
