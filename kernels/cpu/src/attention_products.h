// The two products of attention for a block of 16 query rows: an element is one running sum over the
// reduced dimension in rising order.
//
// Both take 16 x 32 activations (rows, reduced dimension) and 32 x 16 weights; a square of either is
// kSquare elements. bfloat16 weights are pairs of the reduced dimension: [pair][16][2].
#pragma once

#include "common.h"

namespace ramet {
namespace {

constexpr int kSquare = 16 * kGroup;

template <class S>
struct VectorProducts {
    // scores[positions][16 rows] = keys x queries, for tiles of 16 positions.
    // keys: [tile][group of dims][16][32]; queries: [group of dims][32 x 16].
    template <class T>
    static void scores(const T* keys, const T* queries, int num_groups, int first_tile, int last_tile,
                       float* out) {
        for (int tile = first_tile; tile < last_tile; ++tile) {
            product(keys + static_cast<std::size_t>(tile) * num_groups * kSquare, queries, kSquare,
                    num_groups, kTileRows, out + tile * kTileRows * kHalf, kHalf);
        }
    }

    // out[num_rows][dims] = weights x values, over groups of 32 positions.
    // weights: [group of positions][16][32]; values: [group of positions][16 dims each][32 x 16].
    template <class T>
    static void values(const T* weights, const T* values, int first_group, int last_group,
                       int num_rows, int dim, float* out) {
        const int num_tiles = dim / kHalf;
        for (int tile = 0; tile < num_tiles; ++tile) {
            product(weights + first_group * kSquare, values + (first_group * num_tiles + tile) * kSquare,
                    static_cast<std::size_t>(num_tiles) * kSquare, last_group - first_group, num_rows,
                    out + tile * kHalf, dim);
        }
    }

    // Called before and after a run of products.
    static void begin() {}
    static void end() {}

  private:
    static constexpr int kRows = S::W == 16 ? 8 : 4;
    static constexpr int kVectors = kHalf / S::W < 2 ? 1 : 2;
    static constexpr int kSpan = kVectors * S::W;

    template <class T>
    static void product(const T* a, const T* b, std::size_t b_stride, int num_groups, int num_rows,
                        float* c, std::size_t ldc) {
        int row = 0;
        for (; row + kRows <= num_rows; row += kRows) {
            rows<T, kRows>(a + row * kGroup, b, b_stride, num_groups, c + row * ldc, ldc);
        }
        for (; row < num_rows; ++row) {
            rows<T, 1>(a + row * kGroup, b, b_stride, num_groups, c + row * ldc, ldc);
        }
    }

    template <class T, int R>
    static void rows(const T* a, const T* b, std::size_t b_stride, int num_groups, float* c,
                     std::size_t ldc) {
        for (int column = 0; column < kHalf; column += kSpan) {
            typename S::Reg sum[R][kVectors];
            for (int r = 0; r < R; ++r) {
                for (int v = 0; v < kVectors; ++v) sum[r][v] = S::zero();
            }
            for (int group = 0; group < num_groups; ++group) {
                step<R>(sum, a + group * kSquare, b + group * b_stride, column);
            }
            for (int r = 0; r < R; ++r) {
                for (int v = 0; v < kVectors; ++v) {
                    S::store(c + r * ldc + column + v * S::W, sum[r][v]);
                }
            }
        }
    }

    template <int R>
    static void step(typename S::Reg (&sum)[R][kVectors], const bf16* a, const bf16* b, int column) {
        for (int pair = 0; pair < kGroup / 2; ++pair) {
            typename S::Pairs w[kVectors];
            for (int v = 0; v < kVectors; ++v) {
                w[v] = S::load_pairs(b + (pair * kHalf + column + v * S::W) * 2);
            }
            for (int r = 0; r < R; ++r) {
                const auto x = S::set1_pair(a + r * kGroup + 2 * pair);
                for (int v = 0; v < kVectors; ++v) sum[r][v] = S::dot(sum[r][v], x, w[v]);
            }
        }
    }

    template <int R>
    static void step(typename S::Reg (&sum)[R][kVectors], const float* a, const float* b,
                     int column) {
        for (int k = 0; k < kGroup; ++k) {
            typename S::Reg w[kVectors];
            for (int v = 0; v < kVectors; ++v) w[v] = S::load(b + k * kHalf + column + v * S::W);
            for (int r = 0; r < R; ++r) {
                const auto x = S::set1(a[r * kGroup + k]);
                for (int v = 0; v < kVectors; ++v) sum[r][v] = S::fma(x, w[v], sum[r][v]);
            }
        }
    }
};

}  // namespace
}  // namespace ramet
