// A range of panels and rows of a linear layer: products, then the epilogue while they are in the cache.
#pragma once

#include "kernel_table.h"
#include "vector_math.h"

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
    using Reg = typename S::Reg;

    // Groups whose share of a panel stays in the first-level cache while rows pass by, and the rows whose
    // unfinished sums wait meanwhile.
    static constexpr int kGroupsAtOnce = 9;
    static constexpr int kRowsAtOnce = 256;

    template <class T>
    static void run_typed(const LinearJob& shared, int first_panel, int last_panel, int first_row,
                          int last_row) {
        const LinearJob job = shared;  // a copy that no store can alias
        alignas(64) float products[kRowsAtOnce * kPanel];
        M::begin();
        for (int panel = first_panel; panel < last_panel; ++panel) {
            for (int row = first_row; row < last_row; row += kRowsAtOnce) {
                const int num_rows = smaller(kRowsAtOnce, last_row - row);
                multiply<T>(job, panel, row, num_rows, products);
                if (job.activation == Activation::none) {
                    plain<T>(job, panel, row, num_rows, products);
                } else {
                    gated<T>(job, panel, row, num_rows, products);
                }
            }
        }
        M::end();
    }

    template <class T>
    static void multiply(const LinearJob& job, int panel, int first_row, int num_rows,
                         float* products) {
        const std::size_t tile_stride =
            static_cast<std::size_t>(job.num_groups) * kTileRows * kGroup;
        const std::size_t panel_stride = static_cast<std::size_t>(job.num_groups) * kGroup * kPanel;
        const T* activations =
            static_cast<const T*>(job.activations) + first_row / kTileRows * tile_stride;
        const T* weight = static_cast<const T*>(job.weight) + panel * panel_stride;
        const int step = num_rows > kBlockRows ? kGroupsAtOnce : job.num_groups;
        for (int group = 0; group < job.num_groups; group += step) {
            for (int row = 0; row < num_rows; row += kBlockRows) {
                if (group + step >= job.num_groups) {
                    fetch_out<T>(job, panel, first_row + row, smaller(kBlockRows, num_rows - row));
                }
                M::block(activations + row / kTileRows * tile_stride + group * kTileRows * kGroup,
                         tile_stride, weight + static_cast<std::size_t>(group) * kGroup * kPanel,
                         smaller(step, job.num_groups - group), products + row * kPanel, kPanel,
                         smaller(kBlockRows, num_rows - row), group > 0);
            }
        }
    }

    // Has the lines of the result ready for the epilogue: they are seldom in a near cache.
    template <class T>
    static void fetch_out(const LinearJob& job, int panel, int first_row, int num_rows) {
        const int width = job.activation == Activation::none ? kPanel : kHalf;
        const T* out = static_cast<const T*>(job.out) + first_row * job.out_stride + panel * width;
        for (int r = 0; r < num_rows; ++r) __builtin_prefetch(out + r * job.out_stride, 1);
    }

    static Reg biased(const LinearJob& job, int packed_column, const float* product) {
        const Reg x = S::load(product);
        return job.bias ? S::add(x, S::load(job.bias + packed_column)) : x;
    }

    template <class T>
    static void plain(const LinearJob& job, int panel, int first_row, int num_rows,
                      const float* products) {
        const int first = panel * kPanel;
        const int count = smaller(kPanel, job.num_columns - first);
        const auto* residuals = static_cast<const T*>(job.residual);
        for (int r = 0; r < num_rows; ++r) {
            const std::int64_t row = first_row + r;
            T* out = static_cast<T*>(job.out) + row * job.out_stride + first;
            for (int c = 0; c < count; c += S::W) {
                Reg x = biased(job, first + c, products + r * kPanel + c);
                if (residuals) {
                    const T* residual = residuals + row * job.residual_stride + first + c;
                    x = S::add(rounded<S, T>(x), load_upto<S>(residual, count - c));
                }
                store_upto<S>(out + c, x, count - c);
            }
        }
    }

    // Gate and up are rounded first, so that the fusion gives the bits of the two ops.
    template <class T>
    static void gated(const LinearJob& job, int panel, int first_row, int num_rows,
                      const float* products) {
        const int first = panel * kHalf;
        const int count = smaller(kHalf, job.num_columns - first);
        for (int r = 0; r < num_rows; ++r) {
            const float* product = products + r * kPanel;
            T* out = static_cast<T*>(job.out) + (first_row + r) * job.out_stride + first;
            for (int c = 0; c < count; c += S::W) {
                const Reg gate = rounded<S, T>(biased(job, panel * kPanel + c, product + c));
                const Reg up =
                    rounded<S, T>(biased(job, panel * kPanel + kHalf + c, product + kHalf + c));
                store_upto<S>(out + c, S::mul(activate<S>(job.activation, gate), up), count - c);
            }
        }
    }
};

}  // namespace
}  // namespace ramet
