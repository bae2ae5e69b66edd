"""From what to run to logits: builds the tensors of a step and runs the model on them.

It owns the KV memory and the block tables as one matrix, a row per running request. It does not know
why a request runs, nor what happens to its logits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ..models import Decoder
from ..request import Request
from ..scheduler import ScheduleBatch, ScheduledRequest
from .batch import ForwardBatch
from .kv_pool import PagedKVPool


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
        # Almost all steps run one token of each request, and then most of this has nothing to do.
        is_decode = batch.num_decodes == len(scheduled)
        if is_decode:
            kv_lens = starts + 1
            cu_seqlens = np.arange(len(scheduled) + 1)
            positions, sequences = starts, cu_seqlens[:-1]
        else:
            counts = np.array([item.num_new_tokens for item in scheduled])
            kv_lens = starts + counts
            cu_seqlens = np.concatenate(([0], np.cumsum(counts)))
            sequences = np.repeat(np.arange(len(scheduled)), counts)
            positions = np.arange(len(sequences)) + np.repeat(starts - cu_seqlens[:-1], counts)
        tables = self._tables[rows, : -(-int(kv_lens.max()) // block_size)]
        block_ids = tables[sequences, positions // block_size].astype(np.int64)
        return ForwardBatch(
            input_ids=self._to_device(_input_ids(scheduled, is_decode)),
            positions=self._to_device(positions),
            slot_mapping=self._to_device(block_ids * block_size + positions % block_size),
            cu_seqlens=self._to_device(cu_seqlens.astype(np.int32)),
            kv_lens=self._to_device(kv_lens.astype(np.int32)),
            block_tables=self._to_device(tables),
            logit_rows=self._to_device(_logit_rows(scheduled, cu_seqlens)),
            block_copies=self._to_device(
                np.array(batch.block_copies, dtype=np.int64).reshape(-1, 2)
            ),
        )

    def _sync_row(self, request: Request) -> None:
        known, have = request.num_synced_blocks, len(request.block_table)
        if known < have:
            self._tables[request.row, known:have] = request.block_table[known:]
            request.num_synced_blocks = have

    def _to_device(self, array: NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array).to(self.kv_pool.data.device)


def _input_ids(scheduled: Sequence[ScheduledRequest], is_decode: bool) -> NDArray[np.int64]:
    if is_decode:
        return np.array([item.request.last_token_id for item in scheduled])
    parts = [
        item.request.token_ids[item.start : item.start + item.num_new_tokens] for item in scheduled
    ]
    return np.concatenate(parts).astype(np.int64)


def _logit_rows(
    scheduled: Sequence[ScheduledRequest], cu_seqlens: NDArray[np.int64]
) -> NDArray[np.int64]:
    if all(item.samples and not item.scores_prompt for item in scheduled):
        return cu_seqlens[1:] - 1
    rows: list[NDArray[np.int64]] = [np.empty(0, dtype=np.int64)]
    for index, item in enumerate(scheduled):
        end = int(cu_seqlens[index + 1])
        if item.scores_prompt:
            rows.append(np.arange(int(cu_seqlens[index]), end))
        elif item.samples:
            rows.append(np.array([end - 1]))
    return np.concatenate(rows)
