#include "dense_ops.h"

#include "quantized_ops.h"
#include "tasks.h"

namespace ramet {
namespace {

// Elements below which handing work to other threads costs more than it saves.
constexpr std::int64_t kMinElements = 1 << 12;
// Activations of one row block: they stay in a core's second-level cache while panels pass by. Processors
// that multiply float32 may have 512 KiB of it.
constexpr std::size_t kRowBlockBytes = std::size_t{768} << 10;
constexpr std::size_t kWideRowBlockBytes = std::size_t{384} << 10;

// body(first, last) over [0, n) in even pieces: as many as give each at least half of min_piece, or some for each
// thread.
template <class Body>
void split_range(ThreadPool& pool, int n, int min_piece, const Body& body) {
    if (n == 0) return;
    int num_pieces = smaller(ceil_div(n, min_piece), pool.size() * kTasksPerThread);
    // As many for one thread as for another, where n is not small.
    if (num_pieces > pool.size()) num_pieces = ceil_div(num_pieces, pool.size()) * pool.size();
    const int piece = ceil_div(n, num_pieces);
    pool.run(ceil_div(n, piece), [&](int task, int) {
        body(task * piece, smaller(n, (task + 1) * piece));
    });
}

int rows_per_piece(std::int64_t row_size) {
    return static_cast<int>(larger<std::int64_t>(1, kMinElements / row_size));
}

template <class T>
void scale_row(T* row, int size, float scale) {
    for (int i = 0; i < size; ++i) assign(row + i, to_float(row[i]) * scale);
}

}  // namespace

LinearJob linear_job(const PackedLinear& weight, const LinearCall& call, const void* activations) {
    const int num_columns =
        call.activation == Activation::none ? weight.out_features() : weight.out_features() / 2;
    return {weight.dtype(),       activations,
            weight.data(),        weight.panel_offsets(),
            weight.num_groups(),  call.num_rows,
            num_columns,          weight.bias(),
            call.residual,        call.residual_stride,
            call.activation,      call.out,
            call.out_stride,      call.wide_out,
            call.softcap};
}

void run_linear(const Compute& compute, const PackedLinear& weight, const LinearCall& call) {
    if (call.num_rows == 0) return;
    if (const auto* quantized = dynamic_cast<const QuantizedWeight*>(&weight)) {
        run_quantized_linear(compute, *quantized, call);
        return;
    }
    ThreadPool& pool = compute.pool;
    const std::size_t size = compute.kernels.activation_size(weight.dtype());
    const std::size_t row_bytes = static_cast<std::size_t>(weight.num_groups()) * kGroup * size;
    const std::size_t block_bytes = size == sizeof(float) ? kWideRowBlockBytes : kRowBlockBytes;
    void* packed = pool.activations().reserve(ceil_div(call.num_rows, kTileRows) * kTileRows *
                                              row_bytes);
    const PackJob pack{weight.dtype(), call.x, call.x_stride, weight.in_features(), packed};
    split_range(pool, call.num_rows, rows_per_piece(weight.in_features()),
                [&](int first, int last) {
                    for_normed_rows(compute.kernels, call, first, last, [&](int from, int to) {
                        compute.kernels.pack(pack, from, to);
                    });
                });
    const LinearJob job = linear_job(weight, call, packed);
    run_panels_and_rows(pool, weight.num_panels(), call.num_rows, row_bytes, block_bytes,
                        [&](int first_panel, int last_panel, int first_row, int last_row) {
                            compute.kernels.linear(job, first_panel, last_panel, first_row,
                                                   last_row);
                        });
}

void run_embedding(const Compute& compute, const PackedLinear& weight, const std::int64_t* token_ids,
                   int num_tokens, float scale, void* out) {
    const int row_size = weight.in_features();
    const std::size_t row_bytes = row_size * dtype_size(weight.dtype());
    split_range(compute.pool, num_tokens, rows_per_piece(row_size), [&](int first, int last) {
        for (int i = first; i < last; ++i) {
            std::byte* row = static_cast<std::byte*>(out) + i * row_bytes;
            weight.unpack_row(token_ids[i], row);
            if (scale == 1.0f) continue;
            if (weight.dtype() == DType::bf16) {
                scale_row(reinterpret_cast<bf16*>(row), row_size, scale);
            } else {
                scale_row(reinterpret_cast<float*>(row), row_size, scale);
            }
        }
    });
}

void run_take_rows(const Compute& compute, const void* x, std::size_t row_bytes,
                   const std::int64_t* rows, int num_rows, void* out) {
    const auto row_size = static_cast<std::int64_t>(row_bytes / sizeof(float)) + 1;
    split_range(compute.pool, num_rows, rows_per_piece(row_size), [&](int first, int last) {
        for (int i = first; i < last; ++i) {
            std::memcpy(static_cast<std::byte*>(out) + i * row_bytes,
                        static_cast<const std::byte*>(x) + rows[i] * row_bytes, row_bytes);
        }
    });
}

void run_norm(const Compute& compute, const NormJob& job, int num_rows) {
    split_range(compute.pool, num_rows, rows_per_piece(job.row_size),
                [&](int first, int last) { compute.kernels.norm(job, first, last); });
}

void run_gate(const Compute& compute, const GateJob& job, int num_rows) {
    split_range(compute.pool, num_rows, rows_per_piece(job.num_columns),
                [&](int first, int last) { compute.kernels.gate(job, first, last); });
}

void run_draw(const Compute& compute, DrawJob job, int num_rows) {
    const std::size_t num_sums =
        static_cast<std::size_t>(num_rows) * ceil_div(job.vocab_size, kDrawBlock);
    job.block_sums =
        static_cast<double*>(compute.pool.partials().reserve(num_sums * sizeof(double)));
    split_range(compute.pool, num_rows, rows_per_piece(job.vocab_size),
                [&](int first, int last) { compute.kernels.draw(job, first, last); });
}

void run_heads(const Compute& compute, const HeadsJob* jobs, int num_jobs, int num_tokens) {
    std::int64_t row_size = 0;
    for (int i = 0; i < num_jobs; ++i) row_size += jobs[i].num_heads * jobs[i].head_dim;
    split_range(compute.pool, num_tokens, rows_per_piece(row_size), [&](int first, int last) {
        for (int i = 0; i < num_jobs; ++i) compute.kernels.heads(jobs[i], first, last);
    });
}

}  // namespace ramet
