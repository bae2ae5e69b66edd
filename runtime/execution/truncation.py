"""Draws tokens from a truncated distribution. Knows logits and numbers, not requests.

A row's result depends on that row alone: every order is fixed, sums run in that order in float64, and
all else is elementwise or the row-wise softmax. Only rows that need their tokens in order sort them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .ranking import rank_keys, top_ids

# (logits, temperature, min_p, uniform) -> token ids, for rows without top-k or top-p; see `Cuts`.
DrawRows = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

# Rows drawn together: few enough that their working memory stays small, enough to keep a device busy.
_ROWS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Cuts:
    """Parameters of n rows, each `[n]`, on the device of the logits.

    Attributes:
        temperature: float32, above 0.
        top_k: int64, 1 to vocab_size; vocab_size keeps all.
        top_p: float64, above 0; 1 keeps all.
        min_p: float32; 0 keeps all.
        uniform: float64 in [0, 1), the numbers that decide.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    uniform: torch.Tensor

    def rows(self, rows: torch.Tensor) -> Cuts:
        """The parameters of some rows, by index."""
        return Cuts(
            self.temperature[rows],
            self.top_k[rows],
            self.top_p[rows],
            self.min_p[rows],
            self.uniform[rows],
        )


def draw(logits: torch.Tensor, cuts: Cuts, draw_rows: DrawRows | None = None) -> torch.Tensor:
    """One token per row: temperature, then top-k, top-p and min-p, then the inverse CDF.

    Top-p keeps the fewest likeliest of the top-k tokens whose share of these reaches it, min-p those
    at least so likely relative to the likeliest. Of equally likely tokens the lower id counts as
    likelier. The distribution is laid out by rank for rows with top-k or top-p, by id for the others.
    A row of NaN draws some id in range.

    Args:
        logits: `[n, vocab_size]` float32, not modified.
        cuts: the parameters of the rows.
        draw_rows: a quicker way for the rows whose distribution is laid out by id, if there is one.

    Returns:
        `[n]` int64.
    """
    token_ids = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    few = cuts.top_k < logits.shape[-1]
    nucleus = ~few & (cuts.top_p < 1.0)
    plain = ~few & ~nucleus
    if draw_rows is not None:
        if bool(plain.all()):
            return draw_rows(logits, cuts.temperature, cuts.min_p, cuts.uniform)
        rows = plain.nonzero().squeeze(1)
        some = cuts.rows(rows)
        token_ids[rows] = draw_rows(logits[rows], some.temperature, some.min_p, some.uniform)
        plain = torch.zeros_like(plain)
    for group, draw_group in (
        (few, _draw_by_rank),
        (nucleus, _draw_by_rank),
        (plain, _draw_by_id),
    ):
        members = group.nonzero().squeeze(1)
        for start in range(0, members.shape[0], _ROWS_AT_ONCE):
            rows = members[start : start + _ROWS_AT_ONCE]
            token_ids[rows] = draw_group(logits[rows], cuts.rows(rows))
    return token_ids


def _weights(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    # The likeliest token is at zero before the division, so no temperature can overflow it.
    scaled = logits - logits.amax(dim=-1, keepdim=True)
    return torch.softmax(scaled.div_(temperature.unsqueeze(1)), dim=-1)


def _draw_by_id(logits: torch.Tensor, cuts: Cuts) -> torch.Tensor:
    weights = _weights(logits, cuts.temperature)
    if bool((cuts.min_p > 0.0).any()):
        floor = weights.amax(dim=-1, keepdim=True) * cuts.min_p.unsqueeze(1)
        weights = torch.where(weights >= floor, weights, 0.0)
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    return _invert(cumulative, cumulative[:, -1:], cuts.uniform)


def _draw_by_rank(logits: torch.Tensor, cuts: Cuts) -> torch.Tensor:
    # Ordered by logits: the weights round, and could tie where the logits do not.
    ids = top_ids(rank_keys(logits), int(cuts.top_k.max()))
    weights = _weights(logits, cuts.temperature).gather(1, ids)
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    top_k = cuts.top_k.unsqueeze(1)
    target = cumulative.gather(1, top_k - 1) * cuts.top_p.unsqueeze(1)
    num_kept = torch.minimum(top_k, torch.searchsorted(cumulative, target) + 1)
    if bool((cuts.min_p > 0.0).any()):
        floor = weights[:, :1] * cuts.min_p.unsqueeze(1)
        num_likely = (weights >= floor).sum(dim=-1, keepdim=True)
        num_kept = torch.minimum(num_kept, num_likely).clamp(min=1)
    ranks = _invert(cumulative, cumulative.gather(1, num_kept - 1), cuts.uniform)
    return ids.gather(1, ranks.unsqueeze(1)).squeeze(1)


def _invert(cumulative: torch.Tensor, total: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The first place where the cumulative weight exceeds that share of the total: `[n]` int64.

    Args:
        cumulative: `[n, m]` float64, ascending.
        total: `[n, 1]` float64, of the weights that are kept.
        uniform: `[n]` float64 in [0, 1).
    """
    # Rounded up, the product could reach the total, which nothing kept exceeds.
    below = torch.nextafter(total, torch.zeros_like(total))
    target = torch.minimum(total * uniform.unsqueeze(1), below)
    places = torch.searchsorted(cumulative, target, right=True).squeeze(1)
    return places.clamp(max=cumulative.shape[-1] - 1)
