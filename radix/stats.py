"""What the cache has done so far, as counters; rates are for whoever reads them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """A snapshot. Counts since the start, except where they say "now".

    Attributes:
        num_queries: acquisitions that were counted.
        queried_tokens: tokens of their prompts.
        hit_tokens: of these, tokens whose KV was found, copied tails included.
        inserted_tokens: tokens that entered the tree.
        evicted_tokens: tokens that left the tree to make room.
        evicted_blocks: blocks that became free by that.
        deduplicated_blocks: blocks given back at commit because the tree had the same already.
        num_nodes: nodes now, roots excepted.
        num_tokens: tokens in the tree now.
        num_namespaces: trees now.
        quarantined_blocks: blocks out of circulation now.
        num_retractions: retained prefixes that were given up to make room.
    """

    num_queries: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0
    inserted_tokens: int = 0
    evicted_tokens: int = 0
    evicted_blocks: int = 0
    deduplicated_blocks: int = 0
    num_nodes: int = 0
    num_tokens: int = 0
    num_namespaces: int = 0
    quarantined_blocks: int = 0
    num_retractions: int = 0
