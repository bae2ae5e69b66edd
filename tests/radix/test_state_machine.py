"""Random lives of sequences against a model of what is cached and of the bytes in every block.

The model keeps, per block and slot, a hash of the namespace and of all tokens up to that position:
what real KV depends on. So a hit, a shared block or a copied tail that holds another prefix's KV
shows at once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from numpy.typing import NDArray

from ramet.radix import PrefixCache, PrefixHandle

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=20)
NAMESPACES = st.sampled_from(["", "tenant"])
INDEX = st.integers(0, 7)
MAX_LENGTH = 40


def as_array(tokens: list[int]) -> NDArray[np.int32]:
    return np.array(tokens, dtype=np.int32)


def prefix_hashes(namespace: str, tokens: list[int]) -> list[int]:
    value = 17 if namespace else 5
    hashes = []
    for token in tokens:
        value = hash((value, token))
        hashes.append(value)
    return hashes


@dataclass(eq=False)
class Sequence:
    namespace: str
    tokens: list[int]
    handle: PrefixHandle
    table: list[int]
    num_computed: int

    def private_blocks(self, block_size: int) -> list[int]:
        return self.table[self.handle.num_tokens // block_size :]


class CacheMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.sequences: list[Sequence] = []
        self.junk: list[int] = []
        self.retained: dict[PrefixHandle, tuple[str, list[int]]] = {}
        self.cached: set[tuple[str, tuple[int, ...]]] = set()
        self.known: set[tuple[str, tuple[int, ...]]] = set()

    @initialize(
        block_size=st.integers(1, 4),
        num_blocks=st.integers(4, 24),
        policy=st.sampled_from(["lru", "lfu"]),
    )
    def build(self, block_size: int, num_blocks: int, policy: str) -> None:
        self.block_size = block_size
        self.cache = PrefixCache(num_blocks, block_size, eviction_policy=policy)
        self.kv = [[0] * block_size for _ in range(num_blocks)]

    def expected_match(self, namespace: str, tokens: list[int]) -> int:
        length = 0
        while length < len(tokens) and (namespace, tuple(tokens[: length + 1])) in self.cached:
            length += 1
        return length

    def observed_cached(self) -> set[tuple[str, tuple[int, ...]]]:
        found = set()
        for namespace, tokens in self.known:
            matched = self.cache.match(as_array(list(tokens)), namespace)
            found |= {(namespace, tokens[:length]) for length in range(1, matched + 1)}
        return found

    def allocate(self, num_blocks: int) -> list[int] | None:
        """Allocate, and check that exactly the blocks needed were evicted and nothing pinned."""
        free, available = self.cache.num_free, self.cache.num_available
        generation = self.cache.generation
        retractions = self.cache.stats.num_retractions
        num_spared = free + self.cache.num_evictable - len(self.evictable_retained())
        blocks = self.cache.allocate(num_blocks)
        if num_blocks <= num_spared:
            assert self.cache.stats.num_retractions == retractions
        num_lost = self.cache.stats.num_retractions - retractions
        for handle in list(self.retained)[:num_lost]:
            assert not self.cache.end_retention(handle), "the oldest goes first"
            del self.retained[handle]
        if blocks is None:
            assert num_blocks > available
        else:
            assert num_blocks <= available
            assert len(set(blocks)) == num_blocks
            assert self.cache.num_free == max(free, num_blocks) - num_blocks
        if blocks is None or num_blocks <= free:
            assert self.cache.generation == generation
            return blocks
        remaining = self.observed_cached()
        assert remaining <= self.cached
        self.cached = remaining
        return blocks

    def retained_blocks(self) -> set[int]:
        return {block for handle in self.retained for block in handle.block_ids}

    def evictable_retained(self) -> set[int]:
        """Blocks of retained prefixes that nobody else holds."""
        held = {block for s in self.sequences for block in s.table} | set(self.junk)
        return self.retained_blocks() - held

    def pick(self, index: int) -> Sequence:
        return self.sequences[index % len(self.sequences)]

    def read(self, table: list[int], length: int) -> list[int]:
        size = self.block_size
        return [self.kv[table[i // size]][i % size] for i in range(length)]

    def start(self, namespace: str, tokens: list[int], max_tokens: int) -> Sequence | None:
        expected = min(self.expected_match(namespace, tokens), max_tokens)
        handle = self.cache.acquire(as_array(tokens), namespace, max_tokens=max_tokens)
        num_hit = handle.num_tokens + handle.tail_len
        assert num_hit == expected
        table = handle.block_ids
        if handle.tail_len:
            assert handle.tail_block is not None
            table.append(handle.tail_block)
        assert self.read(table, num_hit) == prefix_hashes(namespace, tokens)[:num_hit]
        own = self.allocate(1 if handle.tail_len else 0)
        if own is None:
            self.cache.release(handle)
            return None
        if handle.tail_len:
            assert handle.tail_block is not None
            self.kv[own[0]][: handle.tail_len] = self.kv[handle.tail_block][: handle.tail_len]
        sequence = Sequence(namespace, list(tokens), handle, handle.block_ids + own, num_hit)
        self.sequences.append(sequence)
        return sequence

    def advance(self, sequence: Sequence, num_tokens: int) -> bool:
        """Compute tokens: write their KV, into private blocks only. False if memory is short."""
        stop = min(sequence.num_computed + num_tokens, len(sequence.tokens))
        missing = -(-stop // self.block_size) - len(sequence.table)
        blocks = self.allocate(max(0, missing))
        if blocks is None:
            return False
        sequence.table += blocks
        private = set(sequence.private_blocks(self.block_size))
        hashes = prefix_hashes(sequence.namespace, sequence.tokens)
        for position in range(sequence.num_computed, stop):
            block = sequence.table[position // self.block_size]
            assert block in private
            self.kv[block][position % self.block_size] = hashes[position]
        sequence.num_computed = stop
        return True

    def put_in_tree(self, sequence: Sequence, held_back: int) -> None:
        num_tokens = max(sequence.num_computed - held_back, sequence.handle.num_tokens)
        free = self.cache.num_free
        before = self.cache.stats.deduplicated_blocks
        handle = self.cache.commit(
            sequence.handle, as_array(sequence.tokens), sequence.table, num_tokens=num_tokens
        )
        assert handle.num_tokens == num_tokens // self.block_size * self.block_size
        assert handle.tail_len == 0
        assert handle.tail_block is None
        assert handle.block_ids == sequence.table[: num_tokens // self.block_size]
        # Beside duplicates, only the tail of a leaf that was carried on can become free.
        freed = self.cache.num_free - free
        assert 0 <= freed <= self.cache.stats.deduplicated_blocks - before + 1
        sequence.handle = handle
        tokens = tuple(sequence.tokens[:num_tokens])
        self.cached |= {(sequence.namespace, tokens[:i]) for i in range(1, num_tokens + 1)}
        if tokens:
            self.known.add((sequence.namespace, tokens))

    def end(self, sequence: Sequence, is_free_first: bool) -> None:
        self.sequences.remove(sequence)
        private = sequence.private_blocks(self.block_size)
        if is_free_first:
            self.cache.free(private)
        self.cache.release(sequence.handle)
        if not is_free_first:
            self.cache.free(private)

    @rule(namespace=NAMESPACES, tokens=TOKENS, num_tokens=st.integers(0, 20))
    def start_fresh(self, namespace: str, tokens: list[int], num_tokens: int) -> None:
        sequence = self.start(namespace, tokens, len(tokens) - 1)
        if sequence is not None and self.advance(sequence, num_tokens):
            self.put_in_tree(sequence, 0)

    @precondition(lambda self: self.known)
    @rule(index=st.integers(0, 1000), suffix=TOKENS, keep=st.integers(0, MAX_LENGTH))
    def start_on_known(self, index: int, suffix: list[int], keep: int) -> None:
        namespace, tokens = sorted(self.known)[index % len(self.known)]
        prompt = [*tokens[:keep], *suffix][:MAX_LENGTH]
        self.start(namespace, prompt, len(prompt) - 1)

    @rule(namespace=NAMESPACES, tokens=TOKENS, max_tokens=st.integers(0, 20))
    def serve(self, namespace: str, tokens: list[int], max_tokens: int) -> None:
        sequence = self.start(namespace, tokens, min(max_tokens, len(tokens)))
        if sequence is not None:
            if self.advance(sequence, len(tokens)):
                self.put_in_tree(sequence, 0)
            self.end(sequence, False)

    @precondition(lambda self: self.sequences)
    @rule(index=INDEX)
    def fork(self, index: int) -> None:
        parent = self.pick(index)
        self.start(parent.namespace, parent.tokens, len(parent.tokens) - 1)

    @precondition(lambda self: self.sequences)
    @rule(index=INDEX, sampled=TOKENS)
    def decode(self, index: int, sampled: list[int]) -> None:
        sequence = self.pick(index)
        sequence.tokens = [*sequence.tokens, *sampled][:MAX_LENGTH]
        self.advance(sequence, MAX_LENGTH)

    @precondition(lambda self: self.sequences)
    @rule(index=INDEX, num_tokens=st.integers(1, 12))
    def compute(self, index: int, num_tokens: int) -> None:
        self.advance(self.pick(index), num_tokens)

    @precondition(lambda self: self.sequences)
    @rule(index=INDEX, held_back=st.integers(0, 5))
    def commit(self, index: int, held_back: int) -> None:
        self.put_in_tree(self.pick(index), held_back)

    @precondition(lambda self: self.sequences)
    @rule(index=INDEX, is_free_first=st.booleans())
    def finish(self, index: int, is_free_first: bool) -> None:
        self.end(self.pick(index), is_free_first)

    @precondition(lambda self: self.known)
    @rule(index=st.integers(0, 1000), max_blocks=st.integers(1, 8))
    def retain(self, index: int, max_blocks: int) -> None:
        namespace, tokens = sorted(self.known)[index % len(self.known)]
        matched = self.expected_match(namespace, list(tokens))
        handle = self.cache.retain(as_array(list(tokens)), namespace, max_blocks=max_blocks)
        num_blocks = min(matched // self.block_size, max_blocks)
        assert (handle is None) == (num_blocks == 0)
        if handle is not None:
            assert handle.num_tokens == num_blocks * self.block_size
            self.retained[handle] = (namespace, list(tokens[: handle.num_tokens]))

    @precondition(lambda self: self.retained)
    @rule(index=INDEX)
    def end_retention(self, index: int) -> None:
        handle = list(self.retained)[index % len(self.retained)]
        del self.retained[handle]
        assert self.cache.end_retention(handle)
        assert not self.cache.end_retention(handle)

    @rule(num_blocks=st.integers(0, 6))
    def take_junk(self, num_blocks: int) -> None:
        blocks = self.allocate(num_blocks)
        if blocks is not None:
            self.junk += blocks
            for block in blocks:
                self.kv[block] = [-1] * self.block_size

    @precondition(lambda self: self.junk)
    @rule()
    def free_junk(self) -> None:
        self.cache.free(self.junk)
        self.junk = []

    @rule()
    def allocate_exactly_what_is_available(self) -> None:
        assert self.allocate(self.cache.num_available + 1) is None
        blocks = self.allocate(self.cache.num_available)
        assert blocks is not None
        assert self.cache.num_evictable == 0
        for block in blocks:
            self.kv[block] = [-1] * self.block_size
        self.cache.free(blocks)

    @rule()
    def reset(self) -> None:
        num_evictable = self.cache.num_evictable
        assert self.cache.reset() == num_evictable
        self.retained.clear()
        assert self.cache.num_evictable == 0
        remaining = self.observed_cached()
        assert remaining <= self.cached
        self.cached = remaining

    @rule(namespace=NAMESPACES, tokens=TOKENS)
    def match(self, namespace: str, tokens: list[int]) -> None:
        stats, generation = self.cache.stats, self.cache.generation
        expected = self.expected_match(namespace, tokens)
        assert self.cache.match(as_array(tokens), namespace) == expected
        assert (self.cache.stats, self.cache.generation) == (stats, generation)

    @invariant()
    def accounting_is_sound(self) -> None:
        cache = self.cache
        cache.check_integrity()
        assert cache.num_free + cache.num_cached + cache.num_private == cache.num_blocks
        pinned = {block for s in self.sequences for block in s.handle.block_ids}
        assert cache.num_pinned == len(pinned)
        assert cache.num_retained == len(self.retained_blocks())
        assert cache.stats.num_tokens == len(self.cached)

    @invariant()
    def every_cached_prefix_is_found(self) -> None:
        assert self.observed_cached() == self.cached

    @invariant()
    def pinned_prefixes_stay_cached(self) -> None:
        for sequence in self.sequences:
            pinned = tuple(sequence.tokens[: sequence.handle.num_tokens])
            assert not pinned or (sequence.namespace, pinned) in self.cached

    @invariant()
    def retained_prefixes_stay_cached(self) -> None:
        for handle, (namespace, tokens) in self.retained.items():
            assert (namespace, tuple(tokens)) in self.cached
            assert self.read(handle.block_ids, len(tokens)) == prefix_hashes(namespace, tokens)

    @invariant()
    def every_slot_in_use_holds_the_right_kv(self) -> None:
        for sequence in self.sequences:
            hashes = prefix_hashes(sequence.namespace, sequence.tokens)
            read = self.read(sequence.table, sequence.num_computed)
            assert read == hashes[: sequence.num_computed]
        for root in self.cache._tree.roots():
            stack = [(root, list[int](), list[int]())]
            while stack:
                node, tokens, table = stack.pop()
                tokens = tokens + node.tokens.tolist()
                table = table[: node.start // self.block_size] + node.block_ids
                assert self.read(table, node.end) == prefix_hashes(root.namespace, tokens)
                assert len(table) == -(-node.end // self.block_size)
                stack += [(child, tokens, table) for child in node.children.values()]

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for sequence in self.sequences:
            self.cache.release(sequence.handle)
            self.cache.free(sequence.private_blocks(self.block_size))
        self.cache.free(self.junk)
        self.cache.reset()
        assert self.cache.num_free == self.cache.num_blocks
        assert self.cache.stats.num_namespaces == 0
        self.cache.check_integrity()


CacheMachine.TestCase.settings = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestCacheMachine = CacheMachine.TestCase


def random_tokens(random: np.random.Generator, most: int) -> list[int]:
    tokens: list[int] = random.integers(2, size=random.integers(1, most + 1)).tolist()
    return tokens


def take_random_step(machine: CacheMachine, random: np.random.Generator) -> None:
    """One rule, drawn so that sequences live long and memory is always short."""
    index = int(random.integers(8))
    namespace = str(random.choice(["", "", "tenant"]))
    draw = random.random()
    if draw < 0.15 or not machine.known:
        machine.start_fresh(namespace, random_tokens(random, 20), int(random.integers(21)))
    elif draw < 0.30:
        keep = int(random.integers(1, MAX_LENGTH))
        machine.start_on_known(int(random.integers(1000)), random_tokens(random, 8), keep)
    elif draw < 0.35:
        machine.serve(namespace, random_tokens(random, 20), int(random.integers(21)))
    elif draw < 0.38:
        machine.take_junk(int(random.integers(6)))
    elif draw < 0.41 and machine.junk:
        machine.free_junk()
    elif draw < 0.43:
        machine.allocate_exactly_what_is_available()
    elif draw < 0.435:
        machine.reset()
    elif draw < 0.455:
        machine.retain(int(random.integers(1000)), int(random.integers(1, 9)))
    elif draw < 0.46 and machine.retained:
        machine.end_retention(index)
    elif not machine.sequences:
        return
    elif draw < 0.49:
        machine.fork(index)
    elif draw < 0.59:
        machine.decode(index, random_tokens(random, 6))
    elif draw < 0.72:
        machine.compute(index, int(random.integers(1, 12)))
    elif draw < 0.88 and len(machine.sequences) < 8:
        machine.commit(index, int(random.choice([0, 0, 0, 1, 3])))
    else:
        machine.finish(index, bool(random.integers(2)))


@pytest.mark.parametrize("policy", ["lru", "lfu"])
@pytest.mark.parametrize("block_size", [1, 2, 4, 5])
def test_long_random_lives_keep_every_invariant(block_size: int, policy: str) -> None:
    random = np.random.default_rng(block_size)
    totals: Counter[str] = Counter()
    for _ in range(4):
        machine = CacheMachine()
        machine.build(block_size, int(random.integers(24, 160)) // block_size, policy)
        for _ in range(250):
            take_random_step(machine, random)
            machine.accounting_is_sound()
            machine.every_cached_prefix_is_found()
            machine.pinned_prefixes_stay_cached()
            machine.retained_prefixes_stay_cached()
            machine.every_slot_in_use_holds_the_right_kv()
        totals.update(
            hit=machine.cache.stats.hit_tokens,
            evicted=machine.cache.stats.evicted_blocks,
            deduplicated=machine.cache.stats.deduplicated_blocks,
            retracted=machine.cache.stats.num_retractions,
        )
        machine.teardown()
    assert min(totals.values()) > 0
