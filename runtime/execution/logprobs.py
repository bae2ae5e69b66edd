"""Log-probabilities of tokens, and of the likeliest tokens beside them. Knows nothing of requests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ..request import TokenLogprobs
from .ranking import rank_keys, top_ids

MIN_LOGPROB = -9999.0

# Rows computed together: the working memory is some thirty bytes per row and token of the vocabulary.
_ROWS_AT_ONCE = 16


def prompt_logprobs(
    logits: torch.Tensor, token_ids: Sequence[int] | NDArray[np.int32], num_top: int
) -> list[TokenLogprobs]:
    """What the model thought of the tokens that followed.

    Args:
        logits: `[n, vocab_size]` float32, row i from the position before token i; not modified.
        token_ids: n ids, the tokens that followed.
        num_top: how many of the likeliest tokens to list; more than the vocabulary has lists all.

    Raises:
        ValueError: there are not as many tokens as rows.
    """
    ids = [int(token_id) for token_id in token_ids]
    return token_logprobs(logits, ids, [num_top] * len(ids))


def token_logprobs(
    logits: torch.Tensor, token_ids: Sequence[int], num_top: Sequence[int]
) -> list[TokenLogprobs]:
    """As `prompt_logprobs`, with a number of listed tokens for each row.

    Impossible tokens have -9999.0, as JSON knows no infinity. A token's rank counts the likelier
    tokens and, among equally likely ones, those with lower ids, so that it is its place in the list.
    """
    if logits.shape[0] != len(token_ids):
        raise ValueError(f"{logits.shape[0]} rows of logits for {len(token_ids)} tokens")
    result: list[TokenLogprobs] = []
    for start in range(0, len(token_ids), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        result += _some_logprobs(logits[rows], token_ids[rows], num_top[rows])
    return result


def _some_logprobs(
    logits: torch.Tensor, token_ids: Sequence[int], num_top: Sequence[int]
) -> list[TokenLogprobs]:
    logprobs = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    ids = torch.tensor(token_ids, dtype=torch.int64, device=logits.device).unsqueeze(1)
    keys = rank_keys(logprobs)
    ranks = ((keys > keys.gather(1, ids)).sum(dim=-1) + 1).tolist()
    listed = top_ids(keys, min(max(num_top), logits.shape[-1]))
    listed_values = logprobs.gather(1, listed).clamp(min=MIN_LOGPROB).tolist()
    values = logprobs.gather(1, ids).squeeze(1).clamp(min=MIN_LOGPROB).tolist()
    return [
        TokenLogprobs(token_id, value, rank, tuple(best[:count]), tuple(best_values[:count]))
        for token_id, value, rank, best, best_values, count in zip(
            token_ids, values, ranks, listed.tolist(), listed_values, num_top, strict=True
        )
    ]
