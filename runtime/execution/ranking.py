"""Orders tokens by their scores, equal ones by their ids. Knows nothing of requests.

Score and id become one integer per token, so that no two are equal and every way of sorting gives the
same order: for a row alone or in a batch, for all of it or its top, on every device.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

_ID_MASK = 2**32 - 1


def best(scores: torch.Tensor) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The highest score of each row and the lowest id that has it; NaN counts as the highest.

    Args:
        scores: `[num_rows, vocab_size]` float32.

    Returns:
        (scores, ids): `[num_rows]` each.
    """
    if scores.device.type == "cpu":
        # Several times as fast here as the tensor library's.
        rows = scores.numpy()
        ids = rows.argmax(axis=-1)
        return rows[np.arange(len(rows)), ids], ids
    best_ids = scores.argmax(dim=-1, keepdim=True)
    best_scores = scores.gather(1, best_ids).squeeze(1)
    return best_scores.cpu().numpy(), best_ids.squeeze(1).cpu().numpy()


def rank_keys(scores: torch.Tensor) -> torch.Tensor:
    """Integers that order tokens: greater for a higher score, then for a lower id.

    Args:
        scores: `[num_rows, vocab_size]` float32; the two zeros count as equal.

    Returns:
        `[num_rows, vocab_size]` int64, all different within a row.
    """
    # A float's bits order like an integer once those of negatives, but the sign, are flipped.
    bits = (scores + 0.0).view(torch.int32)
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    ids = torch.arange(scores.shape[-1], device=scores.device)
    return bits.to(torch.int64).bitwise_left_shift_(32).bitwise_or_(_ID_MASK - ids)


def top_ids(keys: torch.Tensor, num_top: int) -> torch.Tensor:
    """The ids of the greatest keys, greatest first: `[num_rows, num_top]` int64.

    Args:
        keys: `[num_rows, vocab_size]`, made by `rank_keys`; not modified.
        num_top: at most vocab_size.
    """
    if num_top == 0:
        top = keys[:, :0]
    elif keys.device.type == "cpu":
        top = torch.from_numpy(_top_on_cpu(keys.numpy(), num_top)).flip(-1)
    else:
        top = torch.topk(keys, num_top, dim=-1, sorted=True).values
    return _ID_MASK - (top & _ID_MASK)


def _top_on_cpu(keys: NDArray[np.int64], num_top: int) -> NDArray[np.int64]:
    """The greatest keys, ascending. numpy sorts integers with vector instructions, and fast."""
    cut = keys.shape[-1] - num_top
    if cut:
        keys = np.partition(keys, cut, axis=-1)[:, cut:]
    return np.sort(keys, axis=-1)
