"""A model's forward as a list of native ops: recorded once, replayed for every step without Python.

To record, the forward runs on `Recorder` over a specimen of a few rows, whose contents do not matter: the
ops arrive with addresses, and an address tells which tensor it is and where in it. So views cost nothing
and need no description. It owns the specimen; what an op is and does is in src/ops.h and src/program.h.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..ops import AttentionShape, Kernels, StepInputs
from . import _native
from .arguments import int64
from .kernels import CpuKernels
from .plan import CpuPlan
from .results import Results

# Rows of the specimen: two numbers tell rows of tokens from rows of logits, and neither is one, since the
# stride of a single row is anything.
_NUM_TOKENS, _NUM_LOGIT_ROWS = 3, 2
_ROW_KINDS = {_NUM_TOKENS: 0, _NUM_LOGIT_ROWS: 1}


class Recorder(CpuKernels):
    """`CpuKernels` whose ops go to a program instead of being run.

    Attributes:
        kept: what the program reads and nobody else may be holding.
    """

    def __init__(self, kernels: CpuKernels, program: _native.Program) -> None:
        # All but where ops go and what keeps their memory is as in the kernels.
        vars(self).update(vars(kernels))
        self._native = self._program = program
        self.kept: list[torch.Tensor] = []
        # Alive until the recording is over, so that no two tensors have one address.
        self._tensors: list[torch.Tensor] = []

    def specimen(self, shape: AttentionShape) -> StepInputs:
        """Inputs of a step, declared in the order of `CpuProgram`."""
        inputs = [torch.zeros(_NUM_TOKENS, dtype=torch.int64) for _ in range(3)]
        inputs.append(torch.zeros(_NUM_LOGIT_ROWS, dtype=torch.int64))
        for tensor in inputs:
            self._tensors.append(tensor)
            self._program.declare_input(
                tensor.data_ptr(), tensor.nbytes, _ROW_KINDS[tensor.shape[0]]
            )
        plan = self.plan_attention(
            shape,
            cu_seqlens=torch.tensor([0, _NUM_TOKENS], dtype=torch.int32),
            kv_lens=torch.tensor([_NUM_TOKENS], dtype=torch.int32),
            block_tables=torch.zeros(1, _NUM_TOKENS, dtype=torch.int32),
        )
        return StepInputs(inputs[0], inputs[1], inputs[2], inputs[3], plan)

    def _new(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.empty(shape, dtype=dtype)
        self._tensors.append(tensor)
        self._program.declare(
            tensor.data_ptr(), tensor.nbytes, _ROW_KINDS[shape[0]], tensor.nbytes // shape[0]
        )
        return tensor

    def _constant(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.contiguous()
        self.kept.append(tensor)
        return tensor


class CpuProgram:
    """Runs a forward; records it at the first call.

    Args:
        kernels: whose ops run.
        engine: that of the kernels.
        forward: see `Kernels.compile`; kept, and with it the weights and caches that it names.

    Raises:
        ValueError: at the first call, the forward did something to a step's tensors that is no op of
            `Kernels` and no view.
    """

    def __init__(
        self,
        kernels: CpuKernels,
        engine: _native.Engine,
        forward: Callable[[Kernels, StepInputs], torch.Tensor],
    ) -> None:
        self._kernels, self._engine, self._forward = kernels, engine, forward
        self._results = Results()
        self._recording: tuple[_native.Program, AttentionShape, int, list[torch.Tensor]] | None = (
            None
        )

    def __call__(self, step: StepInputs) -> torch.Tensor:
        """What the forward returns for that step: a new tensor, float32.

        Raises:
            ValueError: the inputs do not fit each other or the shape of the first step's attention.
            IndexError: a token id, position, slot or row does not exist.
        """
        plan = step.plan
        assert isinstance(plan, CpuPlan)
        if self._recording is None:
            self._recording = self._record(plan.shape)
        program, shape, width, _ = self._recording
        inputs = [
            int64(step.token_ids, "token_ids"),
            int64(step.positions, "positions"),
            int64(step.slot_mapping, "slot_mapping"),
            int64(step.logit_rows, "logit_rows"),
        ]
        num_tokens, num_logit_rows = plan.num_tokens, inputs[3].shape[0]
        counts = [tensor.shape[0] for tensor in inputs[:3]]
        if counts != [num_tokens] * 3 or plan.shape != shape:
            raise ValueError(
                f"{counts} token ids, positions and slots do not fit a plan of {num_tokens} rows of "
                f"{plan.shape} in a program for {shape}"
            )
        result = self._results.new((num_logit_rows, width))
        self._engine.run(
            program,
            num_tokens,
            num_logit_rows,
            plan.native,
            [tensor.data_ptr() for tensor in inputs],
            result.data_ptr(),
        )
        return result

    def _record(
        self, shape: AttentionShape
    ) -> tuple[_native.Program, AttentionShape, int, list[torch.Tensor]]:
        program = _native.Program()
        recorder = Recorder(self._kernels, program)
        result = self._forward(recorder, recorder.specimen(shape))
        if result.dtype != torch.float32 or not result.is_contiguous():
            raise ValueError(f"a forward returns dense float32 rows, not {result.dtype}")
        program.finish(result.data_ptr())
        return program, shape, result.shape[1], recorder.kept
