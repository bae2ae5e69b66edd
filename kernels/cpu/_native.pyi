"""The C++ module. Addresses are integers, strides count elements; see src/bindings.cpp."""

def available_isas() -> tuple[str, ...]: ...
def fastest_isa() -> str: ...
def advise_huge_pages(address: int, num_bytes: int, /) -> None: ...

class PackedLinear:
    @property
    def dtype(self) -> int: ...
    @property
    def out_features(self) -> int: ...
    @property
    def in_features(self) -> int: ...
    @property
    def gated(self) -> bool: ...
    @property
    def num_bytes(self) -> int: ...

class AttentionPlan:
    @property
    def num_tokens(self) -> int: ...

class HeadsJob:
    def __init__(
        self,
        dtype: int,
        out_dtype: int,
        x: int,
        token_stride: int,
        head_stride: int,
        num_heads: int,
        head_dim: int,
        rotary_dim: int,
        positions: int,
        max_positions: int,
        cos_sin: int,
        slots: int,
        num_slots: int,
        part: int,
        block_size: int,
        out: int,
        /,
    ) -> None: ...

class OpSink:
    def linear(
        self,
        weight: PackedLinear,
        x: int,
        x_stride: int,
        num_rows: int,
        residual: int,
        residual_stride: int,
        activation: int,
        out: int,
        /,
    ) -> None: ...
    def logits(
        self,
        weight: PackedLinear,
        x: int,
        x_stride: int,
        num_rows: int,
        softcap: float,
        out: int,
        /,
    ) -> None: ...
    def embedding(
        self, weight: PackedLinear, token_ids: int, num_tokens: int, scale: float, out: int, /
    ) -> None: ...
    def take_rows(
        self,
        x: int,
        num_source_rows: int,
        row_bytes: int,
        rows: int,
        num_rows: int,
        out: int,
        /,
    ) -> None: ...
    def norm(
        self,
        dtype: int,
        x: int,
        outer_stride: int,
        inner_stride: int,
        num_inner: int,
        num_rows: int,
        residual: int,
        total: int,
        weight: int,
        eps: float,
        row_size: int,
        out: int,
        /,
    ) -> None: ...
    def gate(
        self,
        dtype: int,
        gate_up: int,
        stride: int,
        activation: int,
        num_rows: int,
        num_columns: int,
        out: int,
        /,
    ) -> None: ...
    def heads(self, jobs: list[HeadsJob], num_tokens: int, /) -> None: ...
    def attention(
        self,
        plan: AttentionPlan,
        q_dtype: int,
        q: int,
        q_token_stride: int,
        q_head_stride: int,
        kv_dtype: int,
        num_blocks: int,
        k_cache: int,
        v_cache: int,
        scale: float,
        softcap: float,
        window: int,
        out: int,
        lse: int,
        /,
    ) -> None: ...

class Program(OpSink):
    def __init__(self) -> None: ...
    def declare(self, address: int, num_bytes: int, rows: int, row_bytes: int, /) -> None: ...
    def declare_input(self, address: int, num_bytes: int, rows: int, /) -> None: ...
    def finish(self, result: int, /) -> None: ...

class Engine(OpSink):
    def __init__(self, isa: str, num_threads: int, /) -> None: ...
    def pack(
        self,
        dtype: int,
        weight: int,
        bias: int,
        out_features: int,
        in_features: int,
        gated: bool,
        /,
    ) -> PackedLinear: ...
    def pack_quantized(
        self,
        dtype: int,
        bits: int,
        values: int,
        scales: int,
        minimums: int,
        bias: int,
        out_features: int,
        in_features: int,
        gated: bool,
        /,
    ) -> PackedLinear: ...
    def plan(
        self,
        cu_seqlens: int,
        kv_lens: int,
        block_tables: int,
        num_seqs: int,
        max_num_blocks: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        block_size: int,
        share_prefixes: bool,
        /,
    ) -> AttentionPlan: ...
    def draw(
        self,
        logits: int,
        stride: int,
        num_rows: int,
        vocab_size: int,
        temperature: int,
        min_p: int,
        uniform: int,
        out: int,
        /,
    ) -> None: ...
    def run(
        self,
        program: Program,
        num_tokens: int,
        num_logit_rows: int,
        plan: AttentionPlan,
        inputs: list[int],
        result: int,
        /,
    ) -> None: ...
