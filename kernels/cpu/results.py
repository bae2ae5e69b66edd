"""Memory for results that come again and again: what the last one had, once nobody holds that any more.

A system gives new memory page by page as it is first written, which for the logits of a step takes a
millisecond; memory that was written before costs nothing.
"""

from __future__ import annotations

import math
import weakref

import numpy as np
import torch
from numpy.typing import NDArray

# Logits of 64 rows and 128 Ki tokens; larger results are rare, and not worth holding on to.
_MOST_KEPT = 32 << 20


class Results:
    """Makes float32 tensors. Callable from several threads at once."""

    def __init__(self) -> None:
        self._spare: list[NDArray[np.float32]] = []

    def new(self, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor of that shape with anything in it; its memory is nobody else's while it, or any view
        of it, lives.
        """
        size = math.prod(shape)
        memory = self._take(size)
        # The tensor and its views hold this array, which nobody else does, so its end is theirs.
        array = memory[:size]
        weakref.finalize(array, self._give_back, memory).atexit = False
        return torch.from_numpy(array).view(shape)

    def _take(self, size: int) -> NDArray[np.float32]:
        try:
            spare = self._spare.pop()
        except IndexError:
            return _memory(size)
        if spare.size >= size:
            return spare
        if size * spare.itemsize > _MOST_KEPT:
            self._give_back(spare)
        return _memory(size)

    def _give_back(self, memory: NDArray[np.float32]) -> None:
        if memory.nbytes <= _MOST_KEPT and not self._spare:
            self._spare.append(memory)


def _memory(size: int) -> NDArray[np.float32]:
    # From torch, which aligns it to cache lines, as vectors of results are written.
    memory: NDArray[np.float32] = torch.empty(size, dtype=torch.float32).numpy()
    return memory
