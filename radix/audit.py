"""Recounting: what the tree and the handles say about blocks, against what the counters say.

It only reads; prefix_cache.py acts on what is found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from .blocks import BlockAllocator, IntegrityError
from .handle import PrefixHandle
from .node import RadixNode
from .retention import RetainedPrefixes
from .tree import RadixTree


@dataclass(slots=True)
class Damage:
    """Everything that is wrong.

    Attributes:
        problems: one sentence each.
        blocks: ids of the blocks that cannot be trusted.
        namespaces: trees that refer to them, or whose shape is broken.
        lost_nodes: the nodes of those trees.
    """

    problems: list[str] = field(default_factory=list)
    blocks: set[int] = field(default_factory=set)
    namespaces: set[str] = field(default_factory=set)
    lost_nodes: list[RadixNode] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.problems)


def raise_on_damage(
    tree: RadixTree,
    allocator: BlockAllocator,
    handles: Collection[PrefixHandle],
    retained: RetainedPrefixes,
    block_size: int,
) -> None:
    """Raise IntegrityError with the first few problems, if there are any."""
    damage = find_damage(tree, allocator, handles, retained, block_size)
    if damage:
        rest = f" (and {len(damage.problems) - 5} more)" if len(damage.problems) > 5 else ""
        raise IntegrityError("; ".join(damage.problems[:5]) + rest)


def find_damage(
    tree: RadixTree,
    allocator: BlockAllocator,
    handles: Collection[PrefixHandle],
    retained: RetainedPrefixes,
    block_size: int,
) -> Damage:
    """Compare the shape of the trees, the handles, what is retained, and the counters of blocks."""
    damage = Damage()
    nodes_of = {root.namespace: _reachable(root) for root in tree.roots()}
    num_nodes = sum(map(len, nodes_of.values()))
    pins_of_nodes = _count_node_pins(handles, num_nodes)
    retained_of_nodes = _count_node_pins(retained, num_nodes)
    references: Counter[int] = Counter()
    for namespace, nodes in nodes_of.items():
        problems = [text for node in nodes for text in _node_problems(node, block_size)]
        problems += [
            f"{node!r} counts {node.num_pins} handles, there are {pins_of_nodes[id(node)]}"
            for node in nodes
            if node.num_pins != pins_of_nodes[id(node)]
        ]
        problems += [
            f"{node!r} counts {node.num_retained} retentions, there are {retained_of_nodes[id(node)]}"
            for node in nodes
            if node.num_retained != retained_of_nodes[id(node)]
        ]
        for node in nodes:
            references.update(node.block_ids)
        if problems:
            damage.problems += problems
            damage.namespaces.add(namespace)
    _check_handles([*handles, *retained], nodes_of, block_size, damage)
    _compare_totals(tree, nodes_of.values(), damage)
    pins = Counter(block for handle in handles for block in handle._block_ids)
    suspects: set[int] = set()
    for block, text in allocator.find_problems(references, pins):
        damage.problems.append(text)
        suspects.add(block)
    damage.blocks |= {
        block
        for block in suspects
        if 0 <= block < allocator.num_blocks and not allocator.is_quarantined(block)
    }
    for namespace, nodes in nodes_of.items():
        if any(not suspects.isdisjoint(node.block_ids) for node in nodes):
            damage.namespaces.add(namespace)
        if namespace in damage.namespaces:
            damage.lost_nodes += nodes
    return damage


def _reachable(root: RadixNode) -> list[RadixNode]:
    """Root and descendants, each once, whatever links are broken."""
    found = {id(root): root}
    stack = [root]
    while stack:
        for child in stack.pop().children.values():
            if id(child) not in found:
                found[id(child)] = child
                stack.append(child)
    return list(found.values())


def _count_node_pins(handles: Iterable[PrefixHandle], limit: int) -> Counter[int]:
    pins: Counter[int] = Counter()
    for handle in handles:
        node = handle._node
        # The limit ends the walk if broken links make a ring.
        for _ in range(limit):
            if node is None or not node.is_alive:
                break
            pins[id(node)] += 1
            node = node.parent
    return pins


def _node_problems(node: RadixNode, block_size: int) -> list[str]:
    problems = []
    if not node.is_alive:
        problems.append(f"{node!r} is in the tree, yet marked as removed")
    if node.parent is not None:
        if len(node.tokens) == 0:
            problems.append(f"{node!r} has no tokens")
        if node.parent.end != node.start:
            problems.append(f"{node!r} does not start where its parent ends")
    if node.end != node.start + len(node.tokens):
        problems.append(f"{node!r} has {len(node.tokens)} tokens")
    if len(node.block_ids) != -(-node.end // block_size) - node.start // block_size:
        problems.append(f"{node!r} has {len(node.block_ids)} blocks")
    for token, child in node.children.items():
        if child.parent is not node:
            problems.append(f"{child!r} has another parent than {node!r}")
        if child.namespace != node.namespace:
            problems.append(f"{child!r} is of namespace {child.namespace!r}, not its parent's")
        if len(child.tokens) and child.tokens.item(0) != token:
            problems.append(f"{child!r} is filed under {token}, not its first token")
    if node.children and node.end % block_size and node.block_ids:
        if all(child.block_ids[:1] != node.block_ids[-1:] for child in node.children.values()):
            problems.append(f"{node!r} shares its last block with none of its children")
    return problems


def _check_handles(
    handles: Iterable[PrefixHandle],
    nodes_of: Mapping[str, list[RadixNode]],
    block_size: int,
    damage: Damage,
) -> None:
    reachable = {id(node) for nodes in nodes_of.values() for node in nodes}
    for handle in handles:
        if len(handle._block_ids) * block_size != handle.num_tokens:
            damage.problems.append(f"{handle!r} lists {len(handle._block_ids)} blocks")
        node = handle._node
        if node is None or not node.is_alive:
            continue
        if id(node) not in reachable:
            damage.problems.append(f"{handle!r} is held at {node!r}, which is not in the tree")
            damage.lost_nodes.append(node)
        elif node.end != handle.num_tokens:
            damage.problems.append(f"{handle!r} is held at {node!r}")
            damage.namespaces.add(node.namespace)
        elif _blocks_up_to(node, block_size) != handle._block_ids:
            damage.problems.append(f"{handle!r} lists other blocks than its path")
            damage.namespaces.add(node.namespace)


def _blocks_up_to(node: RadixNode, block_size: int) -> list[int]:
    """Blocks of the path that ends with a node; empty if broken links never reach a root."""
    by_index: dict[int, int] = {}
    current: RadixNode | None = node
    previous_start = node.end + 1
    while current is not None:
        if current.start >= previous_start and current.parent is not None:
            return []
        previous_start = current.start
        first = current.start // block_size
        for offset, block in enumerate(current.block_ids):
            by_index.setdefault(first + offset, block)
        current = current.parent
    return [by_index[index] for index in sorted(by_index)]


def _compare_totals(
    tree: RadixTree, nodes_by_root: Collection[list[RadixNode]], damage: Damage
) -> None:
    num_nodes = sum(len(nodes) - 1 for nodes in nodes_by_root)
    if tree.num_nodes != num_nodes:
        damage.problems.append(f"{tree.num_nodes} nodes are counted, there are {num_nodes}")
    num_tokens = sum(len(node.tokens) for nodes in nodes_by_root for node in nodes)
    if tree.num_tokens != num_tokens:
        damage.problems.append(f"{tree.num_tokens} tokens are counted, there are {num_tokens}")
