// The matrix microkernel in vectors: every element of the result is one running sum over the reduced
// dimension in rising order, whatever the number of rows.
#pragma once

#include "common.h"
#include "fetch_ahead.h"

namespace ramet {
namespace {

template <class S>
struct VectorMatmul {
    // c[m, 32] (stride ldc) = a x b for m <= 32 rows of packed activations and one panel.
    // a_tile_stride: elements from one tile of 16 rows to the next. more: c holds the sums over the
    // groups before these, and the sums go on from there. Rows of c past m hold rubbish.
    template <class T>
    static void block(const T* a, std::size_t a_tile_stride, const T* b, int num_groups, float* c,
                      std::size_t ldc, int m, bool more = false) {
        FetchAhead nothing;
        block<false>(a, a_tile_stride, b, num_groups, c, ldc, m, more, nothing);
    }

    // With weights to fetch meanwhile, a step for each group. kRowsPass: the same panel will be
    // multiplied by other rows next, and these will not be needed soon. Neither changes a result.
    template <bool kRowsPass, class T>
    static void block(const T* a, std::size_t a_tile_stride, const T* b, int num_groups, float* c,
                      std::size_t ldc, int m, bool more, FetchAhead& ahead) {
        FetchAhead nothing;
        for (int row = 0; row < m;) {
            const T* tile = a + row / kTileRows * a_tile_stride + row % kTileRows * kGroup;
            const int left = smaller(m - row, kTileRows - row % kTileRows);
            float* target = c + row * ldc;
            FetchAhead& fetch = row == 0 ? ahead : nothing;
            if (left >= kRows) {
                rows<T, kRows>(tile, b, num_groups, target, ldc, more, fetch);
                row += kRows;
            } else if (left >= 2) {
                rows<T, 2>(tile, b, num_groups, target, ldc, more, fetch);
                row += 2;
            } else {
                rows<T, 1>(tile, b, num_groups, target, ldc, more, fetch);
                row += 1;
            }
        }
    }

    // Called before and after a run of blocks.
    static void begin() {}
    static void end() {}

  private:
    // As many sums as the registers hold: 32 of them with AVX-512, 16 otherwise.
    static constexpr int kRows = S::W == 16 ? 8 : 4;

    // Vectors of columns at a time: all of them for one row, which reads a panel in one stream then, and
    // whose sums are too few otherwise to keep the arithmetic units busy.
    template <int R>
    static constexpr int kVectors = R == 1 ? kPanel / S::W : 2;

    template <class T, int R>
    static void rows(const T* a, const T* b, int num_groups, float* c, std::size_t ldc,
                     bool more, FetchAhead& ahead) {
        constexpr int V = kVectors<R>;
        for (int column = 0; column < kPanel; column += V * S::W) {
            typename S::Reg sum[R][V];
            for (int r = 0; r < R; ++r) {
                for (int v = 0; v < V; ++v) {
                    sum[r][v] = more ? S::load(c + r * ldc + column + v * S::W) : S::zero();
                }
            }
            for (int group = 0; group < num_groups; ++group) {
                if (column == 0) ahead.step();
                step<R>(sum, a + group * kTileRows * kGroup, b + group * kGroup * kPanel, column);
            }
            for (int r = 0; r < R; ++r) {
                for (int v = 0; v < V; ++v) {
                    S::store(c + r * ldc + column + v * S::W, sum[r][v]);
                }
            }
        }
    }

    template <int R, int V>
    static void step(typename S::Reg (&sum)[R][V], const bf16* a, const bf16* b, int column) {
        for (int pair = 0; pair < kGroup / 2; ++pair) {
            typename S::Pairs w[V];
            for (int v = 0; v < V; ++v) {
                const int first = column + v * S::W;
                w[v] = S::load_pairs(b + first / kHalf * (kGroup * kHalf) + pair * kPanel +
                                     first % kHalf * 2);
            }
            for (int r = 0; r < R; ++r) {
                const auto x = S::set1_pair(a + r * kGroup + 2 * pair);
                for (int v = 0; v < V; ++v) sum[r][v] = S::dot(sum[r][v], x, w[v]);
            }
        }
    }

    template <int R, int V>
    static void step(typename S::Reg (&sum)[R][V], const float* a, const float* b, int column) {
        for (int k = 0; k < kGroup; ++k) {
            typename S::Reg w[V];
            for (int v = 0; v < V; ++v) w[v] = S::load(b + k * kPanel + column + v * S::W);
            for (int r = 0; r < R; ++r) {
                const auto x = S::set1(a[r * kGroup + k]);
                for (int v = 0; v < V; ++v) sum[r][v] = S::fma(x, w[v], sum[r][v]);
            }
        }
    }
};

}  // namespace
}  // namespace ramet
