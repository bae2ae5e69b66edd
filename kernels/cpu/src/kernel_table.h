// What one instruction set provides: plain functions on pointers, single-threaded, over a range of a job.
//
// A job describes a whole op; drivers (dense_ops.cpp, quantized_ops.cpp, attention_plan.cpp) cut it into ranges.
#pragma once

#include "kv_tiles.h"

namespace ramet {

// out = epilogue(activations x weight). Element types are all `dtype`, bias excepted.
struct LinearJob {
    DType dtype;
    const void* activations;  // packed: [row tiles][groups][16][32]
    const void* weight;       // packed: panels of [groups][...], see panel_layout.h
    // Where each panel of a compact weight begins and the last one ends, see compact_weight.h; null: dense.
    const std::size_t* panel_offsets;
    int num_groups;
    int num_rows;
    int num_columns;         // of out
    const float* bias;       // [panels * 32] in packed order, or null
    const void* residual;    // [num_rows, num_columns], or null: added to the rounded product
    std::int64_t residual_stride;
    // With an activation, a panel is 16 gate columns and 16 up columns, and makes 16 columns of out.
    Activation activation;
    void* out;
    std::int64_t out_stride;
    // Sums go out as the float32 that they are, bounded where there is a softcap; without activation and
    // residual.
    bool wide_out;
    float softcap;  // 0: none

    int columns_of_panel() const { return activation == Activation::none ? kPanel : kHalf; }
    int num_panels() const { return ceil_div(num_columns, columns_of_panel()); }
};

// Rows of activations as the products of a linear layer take them: in the packed layout, padded with zeros,
// of an element type that is the instruction set's choice.
struct PackJob {
    DType dtype;
    const void* x;  // [rows, num_columns]
    std::int64_t x_stride;
    int num_columns;
    void* packed;
};

// Rows are addressed as [outer, inner]: row r is (r / num_inner, r % num_inner). Strides in elements.
struct NormJob {
    DType dtype;
    const void* x;
    std::int64_t x_outer_stride, x_inner_stride;
    int num_inner;
    const void* residual;  // contiguous like out, or null
    void* total;           // residual + x, contiguous; null without residual
    const float* weight;
    float eps;
    int row_size;
    void* out;  // contiguous
};

struct GateJob {
    DType dtype;
    const void* gate_up;  // [num_rows, 2 * num_columns]
    std::int64_t stride;
    Activation activation;
    int num_columns;
    void* out;  // [num_rows, num_columns], contiguous
};

// Heads of every token, their first rotary_dim dims rotated, written to slot slots[token] of a cache (row
// `token` of out without slots). With rotary_dim 0 it is a copy.
struct HeadsJob {
    DType dtype, out_dtype;  // rounded to dtype first
    const void* x;           // [num_tokens, num_heads, head_dim]
    std::int64_t token_stride, head_stride;
    int num_heads, head_dim, rotary_dim;
    const std::int64_t* positions;
    std::int64_t max_positions;
    const float* cos_sin;  // [max_positions, rotary_dim]
    const std::int64_t* slots;
    std::int64_t num_slots;  // rows of out, where there are slots
    // Of a cache whose blocks have so many slots; maybe in tiles.
    CachePart part;
    int block_size;
    void* out;  // rows of [num_heads, row_size], contiguous, or a cache; see int8_row.h and kv_tiles.h
};

// Tokens whose weights make one sum of a draw.
constexpr int kDrawBlock = 512;

// One token of each row, drawn at its temperature; weights below min_p of the likeliest count as zero.
struct DrawJob {
    const float* logits;
    std::int64_t stride;
    int vocab_size;
    const float* temperature;  // [num_rows], above 0
    const float* min_p;        // [num_rows], 0: all count
    const double* uniform;     // [num_rows] in [0, 1)
    double* block_sums;        // [num_rows, ceil(vocab_size / kDrawBlock)], working memory
    std::int64_t* out;         // [num_rows]
};

struct AttentionTask;  // attention_task.h
struct QuantizeJob;    // quantized_job.h
struct QuantizedJob;

struct KernelTable {
    // Whether weights of bfloat16 may be compact.
    bool expands;
    std::size_t (*activation_size)(DType weight_dtype);
    void (*pack)(const PackJob&, int first_row, int last_row);
    void (*linear)(const LinearJob&, int first_panel, int last_panel, int first_row, int last_row);
    void (*quantize)(const QuantizeJob&, int first_row, int last_row);
    void (*quantized_linear)(const QuantizedJob&, int first_panel, int last_panel, int first_row,
                             int last_row);
    void (*norm)(const NormJob&, int first_row, int last_row);
    void (*gate)(const GateJob&, int first_row, int last_row);
    void (*heads)(const HeadsJob&, int first_token, int last_token);
    void (*draw)(const DrawJob&, int first_row, int last_row);
    std::size_t (*attention_scratch)(int head_dim);
    void (*attend)(const AttentionTask&, void* scratch);
    void (*merge)(const AttentionTask&, void* scratch);
};

// The table's quantized_linear with instructions that some processors of an instruction set have and others
// lack; the same bits.
void avx512_vnni_linear(const QuantizedJob&, int first_panel, int last_panel, int first_row,
                        int last_row);

const KernelTable& portable_kernels();
const KernelTable& avx2_kernels();
const KernelTable& avx512_kernels();
const KernelTable& avx512_bf16_kernels();
const KernelTable& amx_kernels();

}  // namespace ramet
