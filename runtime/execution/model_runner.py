"""From what to run to logits: builds the tensors of a step and runs the model on them.

It owns the KV memory and the block tables as one matrix, a row per running request. It does not know
why a request runs, nor what happens to its logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ..models import Decoder
from ..request import Request
from ..scheduler import ScheduleBatch, ScheduledRequest
from .batch import ForwardBatch
from .kv_pool import PagedKVPool


@dataclass(frozen=True, slots=True)
class _Shape:
    """How the rows of a step belong to its sequences.

    Attributes:
        sequences: `[num_tokens]` int64, whose each row is.
        cu_seqlens, logit_rows: as in `ForwardBatch`.
    """

    sequences: NDArray[np.int64]
    cu_seqlens: torch.Tensor
    logit_rows: torch.Tensor


class ModelRunner:
    """Runs steps of one model.

    Args:
        max_num_seqs: most requests of one step.
        max_model_len: most tokens of one request.
    """

    def __init__(
        self, model: Decoder, kv_pool: PagedKVPool, *, max_num_seqs: int, max_model_len: int
    ) -> None:
        self.model = model
        self.kv_pool = kv_pool
        max_num_blocks = -(-max_model_len // kv_pool.block_size)
        self._tables: NDArray[np.int32] = np.zeros((max_num_seqs, max_num_blocks), dtype=np.int32)
        self._device = kv_pool.data.device
        self._decodes = self._shape_of_decodes(1)
        self._no_copies = torch.empty((0, 2), dtype=torch.int64, device=self._device)

    @torch.inference_mode()
    def run(self, batch: ScheduleBatch) -> torch.Tensor:
        """Run one step: `[num_logit_rows, vocab_size]` float32 logits, on the model's device.

        For each scheduled request, in order: the rows of all its tokens if it scores its prompt, else
        its last row if it samples, else none.
        """
        forward_batch = self._build(batch)
        self.kv_pool.copy_blocks(forward_batch.block_copies)
        return self.model.forward(forward_batch, self.kv_pool)

    def _build(self, batch: ScheduleBatch) -> ForwardBatch:
        scheduled, block_size = batch.scheduled, self.kv_pool.block_size
        for item in scheduled:
            self._sync_row(item.request)
        rows = np.array([item.request.row for item in scheduled])
        starts = np.array([item.start for item in scheduled])
        if batch.num_decodes == len(scheduled) and all(item.samples for item in scheduled):
            # Almost all steps run one token of each request, and they differ in little.
            if len(self._decodes.sequences) != len(scheduled):
                self._decodes = self._shape_of_decodes(len(scheduled))
            shape = self._decodes
            kv_lens = starts + 1
            input_ids = np.array([item.request.last_token_id for item in scheduled])
            positions = starts
        else:
            counts = np.array([item.num_new_tokens for item in scheduled])
            shape = self._shape(scheduled, counts)
            kv_lens = starts + counts
            input_ids = _input_ids(scheduled)
            before = kv_lens - np.cumsum(counts)
            positions = np.arange(len(input_ids)) + np.repeat(before, counts)
        tables = self._tables[rows, : -(-int(kv_lens.max()) // block_size)]
        block_ids = tables[shape.sequences, positions // block_size].astype(np.int64)
        return ForwardBatch(
            input_ids=self._to_device(input_ids),
            positions=self._to_device(positions),
            slot_mapping=self._to_device(block_ids * block_size + positions % block_size),
            cu_seqlens=shape.cu_seqlens,
            kv_lens=self._to_device(kv_lens.astype(np.int32)),
            block_tables=self._to_device(tables),
            logit_rows=shape.logit_rows,
            block_copies=(
                self._to_device(np.array(batch.block_copies, dtype=np.int64))
                if batch.block_copies
                else self._no_copies
            ),
        )

    def _shape_of_decodes(self, num_seqs: int) -> _Shape:
        """One row each, and the logits of all are wanted."""
        rows = np.arange(num_seqs)
        cu_seqlens = np.arange(num_seqs + 1, dtype=np.int32)
        return _Shape(rows, self._to_device(cu_seqlens), self._to_device(rows))

    def _shape(self, scheduled: Sequence[ScheduledRequest], counts: NDArray[np.int64]) -> _Shape:
        cu_seqlens = np.concatenate(([0], np.cumsum(counts)))
        return _Shape(
            np.repeat(np.arange(len(scheduled)), counts),
            self._to_device(cu_seqlens.astype(np.int32)),
            self._to_device(_logit_rows(scheduled, cu_seqlens)),
        )

    def _sync_row(self, request: Request) -> None:
        known, have = request.num_synced_blocks, len(request.block_table)
        if known < have:
            self._tables[request.row, known:have] = request.block_table[known:]
            request.num_synced_blocks = have

    def _to_device(self, array: NDArray[np.generic]) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self._device.type == "cpu" else tensor.to(self._device)


def _input_ids(scheduled: Sequence[ScheduledRequest]) -> NDArray[np.int64]:
    parts = [
        item.request.token_ids[item.start : item.start + item.num_new_tokens] for item in scheduled
    ]
    return np.concatenate(parts).astype(np.int64)


def _logit_rows(
    scheduled: Sequence[ScheduledRequest], cu_seqlens: NDArray[np.int64]
) -> NDArray[np.int64]:
    rows: list[NDArray[np.int64]] = [np.empty(0, dtype=np.int64)]
    for index, item in enumerate(scheduled):
        end = int(cu_seqlens[index + 1])
        if item.scores_prompt:
            rows.append(np.arange(int(cu_seqlens[index]), end))
        elif item.samples:
            rows.append(np.array([end - 1]))
    return np.concatenate(rows)
