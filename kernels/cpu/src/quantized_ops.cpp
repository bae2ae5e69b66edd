#include "quantized_ops.h"

#include "quantized_job.h"
#include "tasks.h"

namespace ramet {
namespace {

// Activations of one row block: they stay in a core's second-level cache while panels pass by.
constexpr std::size_t kRowBlockBytes = std::size_t{256} << 10;
// Elements below which handing work to other threads costs more than it saves.
constexpr std::int64_t kMinElements = 1 << 12;

QuantizedTile* quantize(const Compute& compute, const QuantizedWeight& weight,
                        const LinearCall& call) {
    ThreadPool& pool = compute.pool;
    const std::size_t num_tiles =
        static_cast<std::size_t>(ceil_div(call.num_rows, kTileRows)) * weight.num_groups();
    auto* tiles =
        static_cast<QuantizedTile*>(pool.activations().reserve(num_tiles * sizeof(QuantizedTile)));
    const QuantizeJob job{weight.dtype(), call.x, call.x_stride, weight.in_features(), tiles};
    const std::int64_t num_elements =
        static_cast<std::int64_t>(call.num_rows) * weight.in_features();
    const auto num_pieces = static_cast<int>(larger<std::int64_t>(
        1, smaller<std::int64_t>(num_elements / kMinElements, pool.size() * kTasksPerThread)));
    const int piece = ceil_div(call.num_rows, num_pieces);
    pool.run(ceil_div(call.num_rows, piece), [&](int task, int) {
        for_normed_rows(
            compute.kernels, call, task * piece, smaller(call.num_rows, (task + 1) * piece),
            [&](int first, int last) { compute.kernels.quantize(job, first, last); });
    });
    return tiles;
}

}  // namespace

void run_quantized_linear(const Compute& compute, const QuantizedWeight& weight,
                          const LinearCall& call) {
    const LinearJob linear = linear_job(weight, call, quantize(compute, weight, call));
    const QuantizedJob job{linear, weight.bits(), weight.has_minimums(), weight.group_bytes()};

    const std::size_t row_bytes = weight.num_groups() * sizeof(QuantizedTile) / kTileRows;
    run_panels_and_rows(compute.pool, weight.num_panels(), call.num_rows, row_bytes, kRowBlockBytes,
                        [&](int first_panel, int last_panel, int first_row, int last_row) {
                            compute.kernels.quantized_linear(job, first_panel, last_panel, first_row,
                                                   last_row);
                        });
}

}  // namespace ramet
