// The two products of attention: an element is one running sum over the reduced dimension in rising order.
//
// Both take rows of activations (queries, or weights of positions) as they lie, and squares of weights
// (keys, or values) of 32 x 16: [reduced dimension][16], bfloat16 in pairs of it: [pair][16][2].
#pragma once

#include <type_traits>

#include "common.h"

namespace ramet {
namespace {

constexpr int kSquare = kGroup * kHalf;

template <class S>
struct VectorProducts {
    // Elements of the activations, where the weights' are T. Those that are widened for every
    // product are kept wide.
    template <class T>
    using Activation = std::conditional_t<S::kMultipliesPairs, T, float>;

    // Rows of a block.
    static constexpr int kBlockRows = 16;

    // scores[row][position] = queries x keys, for tiles of 16 positions; rows of kSplit scores.
    // queries: rows of num_groups * 32; keys: [tile][group of dims][32 x 16].
    template <class A, class T>
    static void scores(const A* queries, const T* keys, int num_groups, int num_rows, int first_tile,
                       int last_tile, float* out) {
        for (int tile = first_tile; tile < last_tile; ++tile) {
            product(queries, num_groups * kGroup, keys + tile * num_groups * kSquare, kSquare,
                    num_groups, num_rows, out + tile * kHalf, kSplit);
        }
    }

    // out[row][dim] = weights x values, over groups of 32 positions.
    // weights: rows of kSplit; values: [group of positions][16 dims each][32 x 16].
    template <class A, class T>
    static void values(const A* weights, const T* values, int first_group, int last_group,
                       int num_rows, int dim, float* out) {
        const int num_tiles = dim / kHalf;
        for (int tile = 0; tile < num_tiles; ++tile) {
            product(weights + first_group * kGroup, kSplit,
                    values + (first_group * num_tiles + tile) * kSquare,
                    static_cast<std::size_t>(num_tiles) * kSquare, last_group - first_group, num_rows,
                    out + tile * kHalf, dim);
        }
    }

    // Called before and after a run of products.
    static void begin() {}
    static void end() {}

  private:
    // As many sums as the registers hold: 32 of them with AVX-512, 16 otherwise.
    static constexpr int kRows = S::W == 16 ? 8 : 4;
    static constexpr int kVectors = kHalf / S::W < 2 ? 1 : 2;
    static constexpr int kSpan = kVectors * S::W;

    template <class A, class T>
    static void product(const A* a, std::size_t lda, const T* b, std::size_t b_stride, int num_groups,
                        int num_rows, float* c, std::size_t ldc) {
        int row = 0;
        for (; row + kRows <= num_rows; row += kRows) {
            rows<kRows>(a + row * lda, lda, b, b_stride, num_groups, c + row * ldc, ldc);
        }
        fewer_rows<kRows - 1>(num_rows - row, a + row * lda, lda, b, b_stride, num_groups,
                              c + row * ldc, ldc);
    }

    // At most R.
    template <int R, class A, class T>
    static void fewer_rows(int num_rows, const A* a, std::size_t lda, const T* b,
                           std::size_t b_stride, int num_groups, float* c, std::size_t ldc) {
        if constexpr (R > 0) {
            if (num_rows == R) {
                rows<R>(a, lda, b, b_stride, num_groups, c, ldc);
            } else {
                fewer_rows<R - 1>(num_rows, a, lda, b, b_stride, num_groups, c, ldc);
            }
        }
    }

    template <int R, class A, class T>
    static void rows(const A* a, std::size_t lda, const T* b, std::size_t b_stride, int num_groups,
                     float* c, std::size_t ldc) {
        for (int column = 0; column < kHalf; column += kSpan) {
            typename S::Reg sum[R][kVectors];
            for (int r = 0; r < R; ++r) {
                for (int v = 0; v < kVectors; ++v) sum[r][v] = S::zero();
            }
            for (int group = 0; group < num_groups; ++group) {
                step<R>(sum, a + group * kGroup, lda, b + group * b_stride, column);
            }
            for (int r = 0; r < R; ++r) {
                for (int v = 0; v < kVectors; ++v) {
                    S::store(c + r * ldc + column + v * S::W, sum[r][v]);
                }
            }
        }
    }

    // Pairs are multiplied at once, or first their first elements and then their second.
    template <int R, class A>
    static void step(typename S::Reg (&sum)[R][kVectors], const A* a, std::size_t lda, const bf16* b,
                     int column) {
        for (int pair = 0; pair < kGroup / 2; ++pair) {
            const bf16* w = b + (pair * kHalf + column) * 2;
            if constexpr (S::kMultipliesPairs) {
                for (int v = 0; v < kVectors; ++v) {
                    const auto weights = S::load_pairs(w + v * S::W * 2);
                    for (int r = 0; r < R; ++r) {
                        const auto x = S::set1_pair(a + r * lda + 2 * pair);
                        sum[r][v] = S::dot(sum[r][v], x, weights);
                    }
                }
            } else {
                typename S::Reg first[kVectors], second[kVectors];
                for (int v = 0; v < kVectors; ++v) first[v] = S::load_first(w + v * S::W * 2);
                multiply<R>(sum, a + 2 * pair, lda, first);
                for (int v = 0; v < kVectors; ++v) second[v] = S::load_second(w + v * S::W * 2);
                multiply<R>(sum, a + 2 * pair + 1, lda, second);
            }
        }
    }

    template <int R>
    static void multiply(typename S::Reg (&sum)[R][kVectors], const float* a, std::size_t lda,
                         const typename S::Reg (&w)[kVectors]) {
        for (int r = 0; r < R; ++r) {
            const auto x = S::set1(a[r * lda]);
            for (int v = 0; v < kVectors; ++v) sum[r][v] = S::fma(x, w[v], sum[r][v]);
        }
    }

    template <int R>
    static void step(typename S::Reg (&sum)[R][kVectors], const float* a, std::size_t lda,
                     const float* b, int column) {
        for (int k = 0; k < kGroup; ++k) {
            typename S::Reg w[kVectors];
            for (int v = 0; v < kVectors; ++v) w[v] = S::load(b + k * kHalf + column + v * S::W);
            multiply<R>(sum, a + k, lda, w);
        }
    }
};

}  // namespace
}  // namespace ramet
