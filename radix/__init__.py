"""The prefix cache: token prefixes to block ids, across requests.

It owns block *ids*: who holds which block, which prefix lies where, what goes first when memory
runs out. It knows no tensors; the bytes of the blocks are the runtime's.
"""

from .blocks import IntegrityError
from .eviction import EVICTION_POLICIES
from .handle import PrefixHandle
from .prefix_cache import PrefixCache
from .stats import CacheStats

__all__ = ["EVICTION_POLICIES", "CacheStats", "IntegrityError", "PrefixCache", "PrefixHandle"]
