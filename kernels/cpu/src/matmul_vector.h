// The matrix microkernel in vectors: every element of the result is one running sum over the reduced
// dimension in rising order, whatever the number of rows.
//
// Where no instruction multiplies bfloat16, both sides become float32 first, which is exact: activations as
// they are packed, a panel once for all the rows that it meets. A few rows take a panel as it is.
#pragma once

#include <type_traits>

#include "common.h"
#include "fetch_ahead.h"
#include "widen_pairs.h"

namespace ramet {
namespace {

template <class S>
struct VectorMatmul {
    // What the activations for weights of T are packed as.
    template <class T>
    using Operand = std::conditional_t<S::kMultipliesPairs, T, float>;

    // Rows that pass by a panel at once: their sums fill the registers, beside two vectors of weights and an
    // activation.
    static constexpr int kRows = S::W == 16 ? 8 : S::W == 8 ? 6 : 4;

    // Groups of a panel that stay in the first-level cache while rows pass by.
    template <class T>
    static constexpr int kGroupsAtOnce = sizeof(Operand<T>) == sizeof(float) ? 4 : 18;

    // Whether so many rows pay for widening a panel of T.
    template <class T>
    static constexpr bool widens(int num_rows) {
        return sizeof(Operand<T>) != sizeof(T) && num_rows > kRows;
    }

    // Groups of a panel in float32, in the layout of a panel of float32.
    static void widen(const bf16* b, int num_groups, float* out) {
        constexpr int kHalfSize = kGroup * kHalf;
        for (int half = 0; half < 2 * num_groups; ++half) {
            float* target = out + half / 2 * (kGroup * kPanel) + half % 2 * kHalf;
            widen_pairs<S>(b + half * kHalfSize, kGroup / 2, kPanel, target);
        }
    }

    // c[m, 32] (stride ldc) = a x b for m <= 32 rows of packed activations and one panel.
    // a_tile_stride: elements from one tile of 16 rows to the next. more: c holds the sums over the
    // groups before these, and the sums go on from there. Rows of c past m hold rubbish.
    //
    // With weights to fetch meanwhile, a step for each group. kRowsPass: the same panel will be
    // multiplied by other rows next, and these will not be needed soon. Neither changes a result.
    template <bool kRowsPass, class A, class B>
    static void block(const A* a, std::size_t a_tile_stride, const B* b, int num_groups, float* c,
                      std::size_t ldc, int m, bool more, FetchAhead& ahead) {
        const auto row_of = [a, a_tile_stride](int row) {
            return a + row / kTileRows * a_tile_stride + row % kTileRows * kGroup;
        };
        for (int row = 0; row < m;) {
            const int left = smaller(m - row, kTileRows - row % kTileRows);
            // As even as can be: a few rows at the end of a tile would leave arithmetic units idle.
            const int count = ceil_div(left, ceil_div(left, kRows));
            // Past the last row there is at worst nothing of use.
            const A* next = kRowsPass || row + count < m ? row_of(row + count) : nullptr;
            some_rows<kRows>(count, row_of(row), next, b, num_groups, c + row * ldc, ldc, more, ahead);
            row += count;
        }
    }

    // Called before and after a run of blocks.
    static void begin() {}
    static void end() {}

  private:
    static constexpr int kSums = 2 * kRows;

    // Vectors of columns at a time: all of them for a few rows, whose sums would wait for one another.
    template <int R>
    static constexpr int kVectors = R * kPanel <= kSums * S::W ? kPanel / S::W : 2;

    // Inputs between which lines are fetched ahead.
    static constexpr int kPart = 8;

    // Elements of half a panel, or of a panel of float32, that an input has.
    template <class B>
    static constexpr int kInputStride = sizeof(B) == sizeof(float) ? kPanel : kHalf;

    // rows<count>, which is at most R.
    template <int R, class A, class B>
    static void some_rows(int count, const A* a, const A* next, const B* b, int num_groups, float* c,
                          std::size_t ldc, bool more, FetchAhead& ahead) {
        if constexpr (R > 1) {
            if (count < R) {
                return some_rows<R - 1>(count, a, next, b, num_groups, c, ldc, more, ahead);
            }
        }
        rows<R>(a, next, b, num_groups, c, ldc, more, ahead);
    }

    // next: the rows that follow, to be brought into the first-level cache, or null.
    template <int R, class A, class B>
    static void rows(const A* a, const A* next, const B* b, int num_groups, float* c, std::size_t ldc,
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
                for (int part = 0; part < kGroup; part += kPart) {
                    if (column == 0) {
                        ahead.step<kGroup / kPart>();
                        if (next) fetch_rows<R>(next + group * kTileRows * kGroup, part);
                    }
                    step<R>(sum, a + group * kTileRows * kGroup + part,
                            b + group * kGroup * kPanel + part * kInputStride<B>, column);
                }
            }
            for (int r = 0; r < R; ++r) {
                for (int v = 0; v < V; ++v) {
                    S::store(c + r * ldc + column + v * S::W, sum[r][v]);
                }
            }
        }
    }

    // The share of one part in R rows of a group.
    template <int R, class A>
    static void fetch_rows(const A* rows, int part) {
        constexpr int kBytes = R * kPart * sizeof(A);
        const char* at = reinterpret_cast<const char*>(rows) + part / kPart * kBytes;
        for (int byte = 0; byte < kBytes; byte += kCacheLine) __builtin_prefetch(at + byte);
    }

    static const bf16* pairs_of(const bf16* b, int pair, int column) {
        return b + column / kHalf * (kGroup * kHalf) + pair * kPanel + column % kHalf * 2;
    }

    template <int R, int V>
    static void step(typename S::Reg (&sum)[R][V], const bf16* a, const bf16* b, int column) {
        for (int pair = 0; pair < kPart / 2; ++pair) {
            typename S::Pairs w[V];
            for (int v = 0; v < V; ++v) {
                w[v] = S::load_pairs(pairs_of(b, pair, column + v * S::W));
            }
            for (int r = 0; r < R; ++r) {
                const auto x = S::set1_pair(a + r * kGroup + 2 * pair);
                for (int v = 0; v < V; ++v) sum[r][v] = S::dot(sum[r][v], x, w[v]);
            }
        }
    }

    template <int R, int V>
    static void step(typename S::Reg (&sum)[R][V], const float* a, const bf16* b,
                     int column) {
        for (int pair = 0; pair < kPart / 2; ++pair) {
            typename S::Pairs w[V];
            for (int v = 0; v < V; ++v) {
                w[v] = S::load_pairs(pairs_of(b, pair, column + v * S::W));
            }
            for (int r = 0; r < R; ++r) {
                const float* x = a + r * kGroup + 2 * pair;
                for (int v = 0; v < V; ++v) {
                    sum[r][v] = S::fma(S::set1(x[0]), w[v].low, sum[r][v]);
                }
                for (int v = 0; v < V; ++v) {
                    sum[r][v] = S::fma(S::set1(x[1]), w[v].high, sum[r][v]);
                }
            }
        }
    }

    template <int R, int V>
    static void step(typename S::Reg (&sum)[R][V], const float* a, const float* b,
                     int column) {
#pragma GCC unroll 4
        for (int k = 0; k < kPart; ++k) {
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
