"""Which tokens each request has seen, and the penalties on seeing them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ..request import SamplingParams


@dataclass(frozen=True, slots=True)
class _Row:
    index: int
    repetition: float
    presence: float
    frequency: float


class Penalties:
    """Token counts of the requests that have penalties, one row of a growing table each.

    Requests without penalties take no row. Dims: vocab_size columns.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._rows: dict[str, _Row] = {}
        self._free: list[int] = []
        self._output_counts = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)
        self._seen = torch.zeros(0, vocab_size, dtype=torch.bool, device=device)

    def __contains__(self, request_id: str) -> bool:
        """Whether the request has penalties."""
        return request_id in self._rows

    def add(self, request_id: str, params: SamplingParams, prompt_ids: NDArray[np.int32]) -> None:
        """Start counting for a request that has penalties.

        Raises:
            ValueError: a prompt id lies outside the vocabulary.
        """
        prompt = np.unique(prompt_ids).astype(np.int64)
        if prompt.size and not 0 <= prompt[0] <= prompt[-1] < self._vocab_size:
            raise ValueError(f"prompt ids outside the vocabulary of {self._vocab_size} tokens")
        if not self._free:
            self._grow()
        index = self._free.pop()
        self._output_counts[index] = 0
        self._seen[index] = False
        if params.repetition_penalty != 1.0:
            self._seen[index, torch.from_numpy(prompt).to(self._seen.device)] = True
        self._rows[request_id] = _Row(
            index, params.repetition_penalty, params.presence_penalty, params.frequency_penalty
        )

    def remove(self, request_id: str) -> None:
        """Forget the request, if it has penalties."""
        row = self._rows.pop(request_id, None)
        if row is not None:
            self._free.append(row.index)

    def apply(self, logits: torch.Tensor, rows: torch.Tensor, request_ids: Sequence[str]) -> None:
        """Put the penalties on some rows of the logits, in place.

        Repetition first (prompt and output; positive logits are divided, others multiplied: Keskar et
        al. 2019, section 4.1), then frequency times the count and presence once (output only: the
        formula in OpenAI's API reference). Only the logits of tokens seen are touched.

        Args:
            logits: `[num_rows, vocab_size]` float32.
            rows: `[n]` int64, the row of each request.
            request_ids: n requests with penalties.
        """
        own = [self._rows[request_id] for request_id in request_ids]
        indices = self._indices(own)
        which, ids = self._seen[indices].nonzero(as_tuple=True)
        counts = self._output_counts[indices[which], ids]
        factors = [[row.repetition, row.presence, row.frequency] for row in own]
        table = torch.tensor(factors, dtype=torch.float32, device=logits.device)
        repetition, presence, frequency = table[which].unbind(dim=1)
        position = (rows[which], ids)
        values = logits[position]
        values = torch.where(values > 0, values / repetition, values * repetition)
        logits[position] = values - counts * frequency - (counts > 0) * presence

    def record(self, request_ids: Sequence[str], token_ids: Sequence[int]) -> None:
        """Count one output token each, for requests with penalties."""
        indices = self._indices([self._rows[request_id] for request_id in request_ids])
        ids = torch.tensor(token_ids, dtype=torch.int64, device=indices.device)
        # No two rows are the same, so no position is added to twice.
        self._output_counts[indices, ids] += 1
        self._seen[indices, ids] = True

    def _indices(self, rows: Sequence[_Row]) -> torch.Tensor:
        indices = [row.index for row in rows]
        return torch.tensor(indices, dtype=torch.int64, device=self._output_counts.device)

    def _grow(self) -> None:
        num_rows = self._output_counts.shape[0]
        num_new = max(num_rows, 4)
        self._output_counts = _with_rows(self._output_counts, num_new)
        self._seen = _with_rows(self._seen, num_new)
        self._free.extend(range(num_rows, num_rows + num_new))


def _with_rows(table: torch.Tensor, num_new: int) -> torch.Tensor:
    return torch.cat([table, table.new_zeros(num_new, table.shape[1])])
