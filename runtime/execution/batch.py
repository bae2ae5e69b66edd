"""How to run one step: the tensors of a forward pass, and nothing about requests.

`ScheduleBatch` (runtime/scheduler) says what to run; `build` turns it into a `ForwardBatch` once per
step; the model reads it once per layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBatch:
    """One step's tokens, packed without padding: sequence s owns rows cu_seqlens[s]:cu_seqlens[s+1].

    Dims (defined in runtime/__init__.py): num_tokens rows in all, num_seqs sequences.

    Attributes:
        input_ids: `[num_tokens]` int64.
        positions: `[num_tokens]` int64, position of each token in its sequence.
        slot_mapping: `[num_tokens]` int64, where its KV goes: block_id * block_size + offset.
        cu_seqlens: `[num_seqs + 1]` int32, prefix sums of the new tokens per sequence.
        kv_lens: `[num_seqs]` int32, tokens of KV per sequence once this step's are written.
        block_tables: `[num_seqs, max_num_blocks]` int32, padded with 0 past each sequence's end.
        logit_rows: `[num_logit_rows]` int64, the rows whose logits are wanted, ascending.
        block_copies: `[num_copies, 2]` int64, (source, destination) block ids to copy first.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    cu_seqlens: torch.Tensor
    kv_lens: torch.Tensor
    block_tables: torch.Tensor
    logit_rows: torch.Tensor
    block_copies: torch.Tensor

    @property
    def num_tokens(self) -> int:
        """Rows of this step."""
        return int(self.input_ids.shape[0])
