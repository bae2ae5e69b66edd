from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest
from numpy.typing import NDArray

from ramet.radix import IntegrityError, PrefixCache, PrefixHandle
from ramet.radix.node import RadixNode

Tokens = Callable[[Iterable[int]], NDArray[np.int32]]
Serve = Callable[..., list[int]]


class Scene:
    """A cache in use: two prompts that part inside a block, another namespace, a running request."""

    def __init__(self, serve: Serve) -> None:
        self.cache = PrefixCache(32, 4)
        serve(self.cache, range(14))
        serve(self.cache, [*range(6), 60, 61, 62])
        serve(self.cache, range(9), "other")
        self.prompt = np.arange(40, 60, dtype=np.int32)
        handle = self.cache.acquire(self.prompt, max_tokens=19)
        self.table = self.cache.allocate(5) or []
        self.handle: PrefixHandle = self.cache.commit(
            handle, self.prompt, self.table, num_tokens=10
        )
        self.cache.check_integrity()

    def node(self, length: int) -> RadixNode:
        root = self.cache._tree.root("")
        assert root is not None
        path, _ = self.cache._tree.descend(root, np.arange(length, dtype=np.int32), length)
        return path[-1]


@pytest.fixture
def scene(serve: Serve) -> Scene:
    return Scene(serve)


def lose_reference(scene: Scene) -> None:
    scene.cache._allocator._tree_refs[scene.node(14).block_ids[0]] = 0


def add_reference(scene: Scene) -> None:
    scene.cache._allocator._tree_refs[scene.node(14).block_ids[0]] += 1


def lose_pin(scene: Scene) -> None:
    scene.cache._allocator._pins[scene.handle.block_ids[0]] = 0


def free_cached_block(scene: Scene) -> None:
    scene.cache._allocator._free.append(scene.node(14).block_ids[0])


def free_twice(scene: Scene) -> None:
    scene.cache._allocator._free.append(scene.cache._allocator._free[0])


def leak(scene: Scene) -> None:
    scene.cache._allocator._free.pop()


def share_block_between_prompts(scene: Scene) -> None:
    scene.node(14).block_ids[-1] = scene.handle.block_ids[0]


def invent_block(scene: Scene) -> None:
    scene.node(14).block_ids[-1] = 1000


def list_other_block(scene: Scene) -> None:
    scene.handle._block_ids[0] = scene.node(4).block_ids[0]


BLOCK_DAMAGE = [
    lose_reference,
    add_reference,
    lose_pin,
    free_cached_block,
    free_twice,
    leak,
    share_block_between_prompts,
    invent_block,
    list_other_block,
]


def miscount_pins(scene: Scene) -> None:
    scene.node(14).num_pins += 1


def miscount_evictable(scene: Scene) -> None:
    scene.cache._allocator.num_evictable += 1


def miscount_nodes(scene: Scene) -> None:
    scene.cache._tree.num_nodes += 1


def miscount_tokens(scene: Scene) -> None:
    scene.cache._tree.num_tokens += 1


def misfile_child(scene: Scene) -> None:
    parent = scene.node(6)
    parent.children[99] = parent.children.pop(60)


def move_start(scene: Scene) -> None:
    scene.node(14).start += 1


def empty_node(scene: Scene) -> None:
    node = scene.node(14)
    node.tokens = node.tokens[:0]
    node.end = node.start
    node.block_ids = node.block_ids[:1]


def drop_block(scene: Scene) -> None:
    scene.node(14).block_ids.pop()


def break_parent_link(scene: Scene) -> None:
    scene.node(14).parent = scene.handle._node


def change_namespace(scene: Scene) -> None:
    scene.node(14).namespace = "other"


def kill_node(scene: Scene) -> None:
    scene.node(14).is_alive = False


def move_handle(scene: Scene) -> None:
    scene.handle._node = scene.node(6)


def lose_subtree(scene: Scene) -> None:
    root = scene.cache._tree.root("")
    assert root is not None
    del root.children[40]


def break_shared_tail(scene: Scene) -> None:
    parent = scene.node(6)
    fresh = scene.cache.allocate(1)
    assert fresh is not None
    scene.cache._allocator.add_references(fresh)
    scene.cache._allocator.drop_references(parent.block_ids[-1:])
    parent.block_ids[-1] = fresh[0]


OTHER_DAMAGE = [
    miscount_pins,
    miscount_evictable,
    miscount_nodes,
    miscount_tokens,
    misfile_child,
    move_start,
    empty_node,
    drop_block,
    break_parent_link,
    change_namespace,
    kill_node,
    move_handle,
    lose_subtree,
    break_shared_tail,
]


@pytest.mark.parametrize("damage", [*BLOCK_DAMAGE, *OTHER_DAMAGE])
def test_check_finds_planted_damage(scene: Scene, damage: Callable[[Scene], None]) -> None:
    damage(scene)
    with pytest.raises(IntegrityError):
        scene.cache.check_integrity()


def test_check_finds_a_leaf_missing_from_the_queue(scene: Scene) -> None:
    scene.cache._reclaimer.queue.clear()
    with pytest.raises(IntegrityError, match="queue"):
        scene.cache.check_integrity()
    scene.node(14).is_queued = True
    with pytest.raises(IntegrityError, match="queue"):
        scene.cache.check_integrity()


def test_audit_of_a_sound_cache_changes_nothing(scene: Scene) -> None:
    before = (scene.cache.stats, scene.cache.generation, scene.cache.num_available)
    assert scene.cache.audit() == 0
    assert (scene.cache.stats, scene.cache.generation, scene.cache.num_available) == before


@pytest.mark.parametrize("damage", [*BLOCK_DAMAGE, *OTHER_DAMAGE])
def test_audit_leaves_a_cache_that_works(
    scene: Scene, damage: Callable[[Scene], None], serve: Serve, tokens: Tokens
) -> None:
    cache = scene.cache
    damage(scene)
    num_quarantined = cache.audit()
    assert (num_quarantined > 0) == (damage in [*BLOCK_DAMAGE, drop_block, lose_subtree])
    assert cache.stats.quarantined_blocks == cache.num_quarantined == num_quarantined
    assert cache.audit() == 0
    cache.check_integrity()
    # The running request goes on, and everything that is trusted comes back in the end.
    handle = cache.commit(scene.handle, scene.prompt, scene.table, num_tokens=20)
    cache.check_integrity()
    serve(cache, range(8))
    assert cache.match(tokens(range(8))) == 8
    cache.release(handle)
    cache.free([b for b in scene.table if cache._allocator.is_private(b)])
    cache.check_integrity()
    cache.reset()
    spare = 1 if damage is break_shared_tail else 0
    assert cache.num_free == cache.num_blocks - num_quarantined - spare
    total = cache.num_free + cache.num_cached + cache.num_private + cache.num_quarantined
    assert total == cache.num_blocks


@pytest.mark.parametrize("damage", BLOCK_DAMAGE)
def test_quarantined_blocks_are_never_handed_out(
    scene: Scene, damage: Callable[[Scene], None]
) -> None:
    damage(scene)
    scene.cache.audit()
    suspects = set(scene.cache._allocator._quarantined)
    everything = scene.cache.allocate(scene.cache.num_available)
    assert everything is not None
    assert suspects.isdisjoint(everything)
    assert scene.cache.allocate(1) is None


def test_audit_forgets_only_the_damaged_namespace(scene: Scene, tokens: Tokens) -> None:
    lose_reference(scene)
    generation = scene.cache.generation
    scene.cache.audit()
    assert scene.cache.match(tokens(range(14))) == 0
    assert scene.cache.match(tokens(range(9)), "other") == 9
    assert scene.cache.generation != generation
    scene.cache.release(scene.handle)
    scene.cache.check_integrity()
