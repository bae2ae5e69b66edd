// The matrix microkernel in vectors: every element of the result is one running sum over the reduced
// dimension in rising order, whatever the number of rows.
//
// Where no instruction multiplies bfloat16, both sides become float32 first, which is exact: activations as
// they are packed, a panel once for all the rows that it meets. A few rows take a panel as it is.
#pragma once

#include <type_traits>

#include "common.h"
#include "expand_groups.h"
#include "fetch_ahead.h"
#include "widen_pairs.h"

namespace ramet {
namespace {

template <class S>
struct VectorMatmul {
    // What the activations for weights of T are packed as.
    template <class T>
    using Operand = std::conditional_t<S::kMultipliesPairs, T, float>;

    // Whether weights that are multiplied soon are best fetched into the first-level cache, as on Zen 5.
    static constexpr bool kFetchesNear = S::kMultipliesPairs;

    // Rows that pass by a panel at once: their sums fill the registers, beside two vectors of weights and an
    // activation.
    static constexpr int kRows = S::W == 16 ? 8 : S::W == 8 ? 6 : 4;

    // Rows that can expand a compact panel in registers while they are multiplied by it.
    static constexpr int kExpandingRows = S::kExpands ? (S::W == 16 ? kRows : 1) : 0;

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
        for (int half = 0; half < 2 * num_groups; ++half) {
            float* target = out + half / 2 * kGroupSize + half % 2 * kHalf;
            widen_pairs<S>(b + half * kHalfSize, kGroup / 2, kPanel, target);
        }
    }

    // The same of the next groups of a compact panel.
    static void widen(ExpandGroups<S>& groups, int num_groups, float* out) {
        for (int group = 0; group < num_groups; ++group, out += kGroupSize) {
            if (groups.is_plain()) {
                widen(groups.plain(), 1, out);
            } else {
                for (int part = 0; part < kNumParts; ++part) widen_part(groups, part, out);
            }
            groups.next_group();
        }
    }

    // c[m, 32] (stride ldc) = a x weights for m <= 32 rows of packed activations and one panel.
    // weights: plain groups, or a CompactShare whose first rows can expand it. a_tile_stride: elements from one tile
    // of 16 rows to the next. more: c holds the sums over the groups before these, and the sums go on from
    // there. Rows of c past m hold rubbish.
    //
    // With weights to fetch meanwhile, a step for each group. kRowsPass: the same panel will be
    // multiplied by other rows next, and these will not be needed soon. Neither changes a result.
    template <bool kRowsPass, class A, class Weights>
    static void block(const A* a, std::size_t a_tile_stride, const Weights& weights, int num_groups,
                      float* c, std::size_t ldc, int m, bool more, FetchAhead& ahead) {
        const auto row_of = [a, a_tile_stride](int row) {
            return a + row / kTileRows * a_tile_stride + row % kTileRows * kGroup;
        };
        for (int row = 0; row < m;) {
            const int left = smaller(m - row, kTileRows - row % kTileRows);
            // As even as can be: a few rows at the end of a tile would leave arithmetic units idle.
            const int count = ceil_div(left, ceil_div(left, kRows));
            // Past the last row there is at worst nothing of use.
            const A* next = kRowsPass || row + count < m ? row_of(row + count) : nullptr;
            float* out = c + row * ldc;
            if (row == 0) {
                some_rows<kMostRows<Weights>>(count, row_of(row), next, weights, num_groups, out, ldc,
                                              more, ahead);
            } else {
                some_rows<kRows>(count, row_of(row), next, rest_of(weights), num_groups, out, ldc, more,
                                 ahead);
            }
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

    // Rows that can be first.
    template <class Weights>
    static constexpr int kMostRows = std::is_pointer_v<Weights> ? kRows : kExpandingRows;

    // rows<count>, which is at most R.
    template <int R, class A, class Weights>
    static void some_rows(int count, const A* a, const A* next, const Weights& weights, int num_groups,
                          float* c, std::size_t ldc, bool more, FetchAhead& ahead) {
        if constexpr (R > 1) {
            if (count < R) {
                return some_rows<R - 1>(count, a, next, weights, num_groups, c, ldc, more, ahead);
            }
        }
        rows<R>(a, next, weights, num_groups, c, ldc, more, ahead);
    }

    // next: the rows that follow, to be brought into the first-level cache, or null.
    template <int R, class A, class Weights>
    static void rows(const A* a, const A* next, const Weights& weights, int num_groups, float* c,
                     std::size_t ldc, bool more, FetchAhead& shared) {
        constexpr int V = kVectors<R>;
        FetchAhead ahead = shared;  // a copy that no store can alias
        for (int column = 0; column < kPanel; column += V * S::W) {
            typename S::Reg sum[R][V];
            for (int r = 0; r < R; ++r) {
                for (int v = 0; v < V; ++v) {
                    sum[r][v] = more ? S::load(c + r * ldc + column + v * S::W) : S::zero();
                }
            }
            for (int group = 0; group < num_groups; ++group) {
                // Called before each part of a group.
                const auto fetch = [&](int part) {
                    if (column > 0) return;
                    ahead.step<kGroup / kPart>();
                    if (next) fetch_rows<R>(next + group * kTileRows * kGroup, part);
                };
                steps<R>(sum, a + group * kTileRows * kGroup, weights, group, column, fetch);
            }
            for (int r = 0; r < R; ++r) {
                for (int v = 0; v < V; ++v) {
                    S::store(c + r * ldc + column + v * S::W, sum[r][v]);
                }
            }
        }
        shared = ahead;
    }

    // One group of inputs.
    template <int R, int V, class A, class B, class Fetch>
    static void steps(typename S::Reg (&sum)[R][V], const A* a, const B* b, int group, int column,
                      const Fetch& fetch) {
        b += group * kGroup * kPanel;
        for (int part = 0; part < kGroup; part += kPart) {
            fetch(part);
            step<R>(sum, a + part, b + part * kInputStride<B>, column);
        }
    }

    template <int R, int V, class A, class Fetch>
    static void steps(typename S::Reg (&sum)[R][V], const A* a, const CompactShare<S>& share, int group,
                      int column, const Fetch& fetch) {
        static_assert(V * S::W == kPanel, "a compact group is expanded once");
        bf16* copy = share.copy ? share.copy + group * kGroupSize : nullptr;
        if (share.groups.is_plain()) {
            if (copy) std::memcpy(copy, share.groups.plain(), kPlainGroupBytes);
            steps<R>(sum, a, share.groups.plain(), 0, column, fetch);
        } else {
            for (int part = 0; part < kGroup; part += kPart) {
                fetch(part);
                for (int k = part; k < part + kPart; k += 4) {
                    typename S::Vector vectors[4];
                    share.groups.part(k / 4, vectors);
                    if (copy) ExpandGroups<S>::store(k / 4, vectors, copy);
                    for (int i = 0; i < 2; ++i) {
                        typename S::Pairs w[V];
                        for (int v = 0; v < V; ++v) w[v] = pairs_of(vectors, i, v);
                        multiply_pair<R>(sum, a + k + 2 * i, w);
                    }
                }
            }
        }
        share.groups.next_group();
    }

    // Of columns v * W and on, the first or the second pair of the four vectors of a part.
    template <class Vector>
    static typename S::Pairs pairs_of(const Vector (&part)[4], int pair, int v) {
        return S::pairs_of(part[v * S::W / kHalf * 2 + pair], v * S::W % kHalf / S::W);
    }

    static void widen_part(const ExpandGroups<S>& groups, int part, float* group) {
        typename S::Vector vectors[4];
        groups.part(part, vectors);
        for (int pair = 0; pair < 2; ++pair) {
            float* row = group + (4 * part + 2 * pair) * kPanel;
            for (int v = 0; v < kPanel / S::W; ++v) {
                const auto both = pairs_of(vectors, pair, v);
                S::store(row + v * S::W, both.low);
                S::store(row + kPanel + v * S::W, both.high);
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

    static const bf16* pairs_at(const bf16* b, int pair, int column) {
        return b + column / kHalf * (kGroup * kHalf) + pair * kPanel + column % kHalf * 2;
    }

    template <int R, int V, class A>
    static void step(typename S::Reg (&sum)[R][V], const A* a, const bf16* b, int column) {
        for (int pair = 0; pair < kPart / 2; ++pair) {
            typename S::Pairs w[V];
            for (int v = 0; v < V; ++v) {
                w[v] = S::load_pairs(pairs_at(b, pair, column + v * S::W));
            }
            multiply_pair<R>(sum, a + 2 * pair, w);
        }
    }

    // Two inputs of R rows, kGroup elements apart.
    template <int R, int V>
    static void multiply_pair(typename S::Reg (&sum)[R][V], const bf16* a,
                              const typename S::Pairs (&w)[V]) {
        for (int r = 0; r < R; ++r) {
            const auto x = S::set1_pair(a + r * kGroup);
            for (int v = 0; v < V; ++v) sum[r][v] = S::dot(sum[r][v], x, w[v]);
        }
    }

    template <int R, int V>
    static void multiply_pair(typename S::Reg (&sum)[R][V], const float* a,
                              const typename S::Pairs (&w)[V]) {
        for (int r = 0; r < R; ++r) {
            const float* x = a + r * kGroup;
            for (int v = 0; v < V; ++v) sum[r][v] = S::fma(S::set1(x[0]), w[v].low, sum[r][v]);
            for (int v = 0; v < V; ++v) sum[r][v] = S::fma(S::set1(x[1]), w[v].high, sum[r][v]);
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
