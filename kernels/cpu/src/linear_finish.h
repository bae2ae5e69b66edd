// What follows the products of a linear layer, while they are in the cache: bias, residual, gated activation,
// or logits as they are. The same code for every kind of weight, so that all of them round alike.
#pragma once

#include "kernel_table.h"
#include "vector_math.h"

namespace ramet {
namespace {

template <class S>
struct LinearFinish {
    // products: [num_rows][32], one panel of the rows from first_row on. T: job.dtype.
    template <class T>
    static void run(const LinearJob& job, int panel, int first_row, int num_rows,
                       const float* products) {
        if (job.wide_out) {
            wide(job, panel, first_row, num_rows, products);
        } else if (job.activation == Activation::none) {
            plain<T>(job, panel, first_row, num_rows, products);
        } else {
            gated<T>(job, panel, first_row, num_rows, products);
        }
    }

  private:
    using Reg = typename S::Reg;

    static Reg biased(const LinearJob& job, int packed_column, const float* product) {
        const Reg x = S::load(product);
        return job.bias ? S::add(x, S::load(job.bias + packed_column)) : x;
    }

    template <class T>
    static void plain(const LinearJob& job, int panel, int first_row, int num_rows,
                      const float* products) {
        const int first = panel * kPanel;
        const int count = smaller(kPanel, job.num_columns - first);
        for (int r = 0; r < num_rows; ++r) {
            // With a constant count, the loops over a row have a known length.
            if (count == kPanel) {
                plain_row<T>(job, first, first_row + r, kPanel, products + r * kPanel);
            } else {
                plain_row<T>(job, first, first_row + r, count, products + r * kPanel);
            }
        }
    }

    template <class T>
    static inline __attribute__((always_inline)) void plain_row(const LinearJob& job, int first,
                                                                std::int64_t row, int count,
                                                                const float* products) {
        T* out = static_cast<T*>(job.out) + row * job.out_stride + first;
        for (int c = 0; c < count; c += S::W) {
            Reg x = biased(job, first + c, products + c);
            if (job.residual) {
                const T* residual =
                    static_cast<const T*>(job.residual) + row * job.residual_stride + first + c;
                x = S::add(rounded<S, T>(x), load_upto<S>(residual, count - c));
            }
            store_upto<S>(out + c, x, count - c);
        }
    }

    static void wide(const LinearJob& job, int panel, int first_row, int num_rows,
                     const float* products) {
        const int first = panel * kPanel;
        const int count = smaller(kPanel, job.num_columns - first);
        const Reg softcap = S::set1(job.softcap);
        for (int r = 0; r < num_rows; ++r) {
            float* out = static_cast<float*>(job.out) + (first_row + r) * job.out_stride + first;
            for (int c = 0; c < count; c += S::W) {
                Reg x = biased(job, first + c, products + r * kPanel + c);
                if (job.softcap != 0) x = S::mul(softcap, tanh<S>(S::div(x, softcap)));
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
            if (count == kHalf) {
                gated_row<T>(job, panel, first_row + r, kHalf, products + r * kPanel);
            } else {
                gated_row<T>(job, panel, first_row + r, count, products + r * kPanel);
            }
        }
    }

    template <class T>
    static inline __attribute__((always_inline)) void gated_row(const LinearJob& job, int panel,
                                                                std::int64_t row, int count,
                                                                const float* products) {
        T* out = static_cast<T*>(job.out) + row * job.out_stride + panel * kHalf;
        const int first = panel * kPanel;
        for (int c = 0; c < count; c += S::W) {
            const Reg gate = rounded<S, T>(biased(job, first + c, products + c));
            const Reg up = rounded<S, T>(biased(job, first + kHalf + c, products + kHalf + c));
            store_upto<S>(out + c, S::mul(activate<S>(job.activation, gate), up), count - c);
        }
    }
};

}  // namespace
}  // namespace ramet
