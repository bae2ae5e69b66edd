// A range of panels and rows of a linear layer: products, then the epilogue while they are in the cache.
#pragma once

#include "fetch_ahead.h"
#include "kernel_table.h"
#include "linear_finish.h"

namespace ramet {
namespace {

template <class S, class M>
struct LinearRange {
    static void run(const LinearJob& job, int first_panel, int last_panel, int first_row,
                    int last_row) {
        if (job.dtype == DType::bf16) {
            run_typed<bf16>(job, first_panel, last_panel, first_row, last_row);
        } else {
            run_typed<float>(job, first_panel, last_panel, first_row, last_row);
        }
    }

  private:
    // Groups whose share of a panel stays in the first-level cache while rows pass by, and the rows whose
    // unfinished sums wait meanwhile.
    static constexpr int kGroupsAtOnce = 18;
    static constexpr int kRowsAtOnce = 256;
    // How far a panel that no two blocks of rows share is fetched ahead: a memory latency of reading.
    static constexpr std::size_t kStreamBytes = std::size_t{16} << 10;

    template <class T>
    static void run_typed(const LinearJob& shared, int first_panel, int last_panel, int first_row,
                          int last_row) {
        const LinearJob job = shared;  // a copy that no store can alias
        const int num_blocks = ceil_div(last_row - first_row, kBlockRows);
        const char* weight = static_cast<const char*>(job.weight);
        FetchAhead ahead;
        ahead.weight.end = weight + last_panel * panel_size<T>(job) * sizeof(T);
        constexpr int kGroupLines = static_cast<int>(kGroup * kPanel * sizeof(T) / kCacheLine);
        ahead.weight.num_lines = ceil_div(kGroupLines, num_blocks);
        M::begin();
        for (int panel = first_panel; panel < last_panel; ++panel) {
            if (num_blocks == 1) {
                if (panel == first_panel) {
                    ahead.weight.at = weight + panel * panel_size<T>(job) * sizeof(T) + kStreamBytes;
                }
                multiply_rows<false, T>(job, panel, first_row, last_row, ahead);
            } else {
                ahead.weight.at = weight + (panel + 1) * panel_size<T>(job) * sizeof(T);
                for (int row = first_row; row < last_row; row += kRowsAtOnce) {
                    multiply_rows<true, T>(job, panel, row, smaller(last_row, row + kRowsAtOnce),
                                           ahead);
                }
            }
        }
        M::end();
    }

    template <class T>
    static std::size_t panel_size(const LinearJob& job) {
        return static_cast<std::size_t>(job.num_groups) * kGroup * kPanel;
    }

    // One panel by some rows; kRowsPass: there are several blocks of them.
    template <bool kRowsPass, class T>
    static void multiply_rows(const LinearJob& job, int panel, int first_row, int last_row,
                              FetchAhead& ahead) {
        const std::size_t tile_stride =
            static_cast<std::size_t>(job.num_groups) * kTileRows * kGroup;
        const T* activations =
            static_cast<const T*>(job.activations) + first_row / kTileRows * tile_stride;
        const T* weight = static_cast<const T*>(job.weight) + panel * panel_size<T>(job);
        const int step = kRowsPass ? kGroupsAtOnce : job.num_groups;
        alignas(64) float products[(kRowsPass ? kRowsAtOnce : kBlockRows) * kPanel];
        for (int group = 0; group < job.num_groups; group += step) {
            const bool last = group + step >= job.num_groups;
            // Sums that wait for more groups need a place each; whole ones are used at once.
            const int place = job.num_groups > step ? kPanel : 0;
            for (int row = 0; row < last_row - first_row; row += kBlockRows) {
                const int num_rows = smaller(kBlockRows, last_row - first_row - row);
                float* target = products + row * place;
                if (last) fetch_out<T>(job, panel, first_row + row, num_rows, ahead);
                M::template block<kRowsPass>(
                    activations + row / kTileRows * tile_stride + group * kTileRows * kGroup,
                    tile_stride, weight + static_cast<std::size_t>(group) * kGroup * kPanel,
                    smaller(step, job.num_groups - group), target, kPanel, num_rows, group > 0,
                    ahead);
                if (last) {
                    LinearFinish<S>::template run<T>(job, panel, first_row + row, num_rows, target);
                }
            }
        }
    }

    // Lines of the result, and of what is added to it, are seldom in a near cache.
    template <class T>
    static void fetch_out(const LinearJob& job, int panel, int first_row, int num_rows,
                          FetchAhead& ahead) {
        const int first = panel * (job.activation == Activation::none ? kPanel : kHalf);
        const auto rows = [&](const void* matrix, std::int64_t stride, std::size_t element) {
            const char* start =
                static_cast<const char*>(matrix) + (first_row * stride + first) * element;
            return FetchRows{start, stride * element, num_rows};
        };
        ahead.out = rows(job.out, job.out_stride, job.wide_out ? sizeof(float) : sizeof(T));
        if (job.residual) ahead.residual = rows(job.residual, job.residual_stride, sizeof(T));
    }
};

}  // namespace
}  // namespace ramet
