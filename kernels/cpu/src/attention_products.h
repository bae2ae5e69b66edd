// The two products of attention: an element is one running sum over the reduced dimension in rising order.
//
// Both take rows of activations (queries, or weights of positions) as they lie, and squares of weights
// (keys, or values) of 32 x 16: [reduced dimension][16], bfloat16 in pairs of it: [pair][16][2].
#pragma once

#include <type_traits>

#include "widen_pairs.h"

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
    // queries: rows of num_groups * 32; keys: [tile][group of dims][32 x 16]. An even number of tiles.
    template <class A, class T>
    static void scores(const A* queries, const T* keys, int num_groups, int num_rows, int first_tile,
                       int last_tile, float* out) {
        const std::size_t tile_stride = static_cast<std::size_t>(num_groups) * kSquare;
        const Squares<T> squares{keys + first_tile * tile_stride, kSquare, tile_stride};
        const int num_columns = (last_tile - first_tile) * kHalf;
        with_stride(num_groups * kGroup, [&](auto stride) {
            product(Rows<A, decltype(stride)>{queries, stride}, squares, num_groups, num_rows,
                    num_columns, out + first_tile * kHalf, kSplit);
        });
    }

    // out[row][dim] = weights x values, over groups of 32 positions.
    // weights: rows of kSplit; values: [group of positions][16 dims each][32 x 16].
    template <class A, class T>
    static void values(const A* weights, const T* values, int first_group, int last_group,
                       int num_rows, int dim, float* out) {
        const std::size_t group_stride = static_cast<std::size_t>(dim / kHalf) * kSquare;
        const Squares<T> squares{values + first_group * group_stride, group_stride, kSquare};
        product(Rows<A, Fixed<kSplit>>{weights + first_group * kGroup, {}}, squares,
                last_group - first_group, num_rows, dim, out, dim);
    }

    // Whether so many rows pay for squares of float32 in place of T, which make the same products.
    template <class T>
    static constexpr bool widens(int num_rows) {
        return sizeof(Activation<T>) != sizeof(T) && num_rows > kFewRows;
    }

    // Squares in float32.
    static void widen(const bf16* squares, int num_squares, float* out) {
        widen_pairs<S>(squares, num_squares * (kGroup / 2), kHalf, out);
    }

    // Called before and after a run of products.
    static void begin() {}
    static void end() {}

  private:
    static constexpr int kFewRows = 32;

    template <int N>
    using Fixed = std::integral_constant<int, N>;

    // f(stride), where the compiler knows the usual ones: it can then address all rows from one register.
    template <class F>
    static void with_stride(int stride, const F& f) {
        switch (stride) {
            case 64: return f(Fixed<64>{});
            case 128: return f(Fixed<128>{});
            default: return f(stride);
        }
    }

    // Rows of activations. Stride: int, or one that is Fixed.
    template <class A, class Stride>
    struct Rows {
        const A* first;
        Stride stride;

        Rows from(int row, int column) const { return {first + row * stride + column, stride}; }
        const A* at(int row) const { return first + row * stride; }
    };

    // Where the square of a group of the reduced dimension and of 16 columns lies.
    template <class T>
    struct Squares {
        const T* first;
        std::size_t group_stride, tile_stride;

        // The rows of 16 in which `column` is, from that column on.
        const T* at(int group, int column) const {
            return first + group * group_stride + column / kHalf * tile_stride +
                   column % kHalf * kPerColumn;
        }

        // Elements of one column that lie together.
        static constexpr int kPerColumn = sizeof(T) == sizeof(bf16) ? 2 : 1;
    };

    // As many sums as the registers hold beside what they are made of: 32 of them with AVX-512, 16 otherwise.
    static constexpr int kRows = S::W == 16 ? 8 : 4;
    static constexpr int kSums = 2 * kRows;

    // Vectors of columns at a time for R rows: so many sums that none waits for the one before it.
    template <int R>
    static constexpr int kVectors = 4 * R <= kSums ? 4 : 2;

    // c[row][column] for num_rows rows and num_columns columns, a multiple of 32.
    template <class Rows, class T>
    static void product(const Rows& a, const Squares<T>& b, int num_groups, int num_rows,
                        int num_columns, float* c, std::size_t ldc) {
        int row = 0;
        for (; row + kRows <= num_rows; row += kRows) {
            rows<kRows>(a.from(row, 0), b, num_groups, num_columns, c + row * ldc, ldc);
        }
        fewer_rows<kRows - 1>(num_rows - row, a.from(row, 0), b, num_groups, num_columns,
                              c + row * ldc, ldc);
    }

    // At most R.
    template <int R, class Rows, class T>
    static void fewer_rows(int num_rows, const Rows& a, const Squares<T>& b, int num_groups,
                           int num_columns, float* c, std::size_t ldc) {
        if constexpr (R > 0) {
            if (num_rows == R) {
                rows<R>(a, b, num_groups, num_columns, c, ldc);
            } else {
                fewer_rows<R - 1>(num_rows, a, b, num_groups, num_columns, c, ldc);
            }
        }
    }

    template <int R, class Rows, class T>
    static void rows(const Rows& a, const Squares<T>& b, int num_groups, int num_columns, float* c,
                     std::size_t ldc) {
        int column = 0;
        for (; column + kVectors<R> * S::W <= num_columns; column += kVectors<R> * S::W) {
            columns<R, kVectors<R>>(a, b, num_groups, column, c, ldc);
        }
        for (; column < num_columns; column += 2 * S::W) {
            columns<R, 2>(a, b, num_groups, column, c, ldc);
        }
    }

    template <int R, int V, class Rows, class T>
    static void columns(const Rows& a, const Squares<T>& b, int num_groups, int column, float* c,
                        std::size_t ldc) {
        typename S::Reg sum[R][V];
        for (int r = 0; r < R; ++r) {
            for (int v = 0; v < V; ++v) sum[r][v] = S::zero();
        }
        for (int group = 0; group < num_groups; ++group) {
            const T* weights[V];
            for (int v = 0; v < V; ++v) weights[v] = b.at(group, column + v * S::W);
            step<R>(sum, a.from(0, group * kGroup), weights);
        }
        for (int r = 0; r < R; ++r) {
            for (int v = 0; v < V; ++v) S::store(c + r * ldc + column + v * S::W, sum[r][v]);
        }
    }

    // Pairs are multiplied at once, or first their first elements and then their second.
    template <int R, int V, class Rows>
    static void step(typename S::Reg (&sum)[R][V], const Rows& a, const bf16* const (&b)[V]) {
        for (int pair = 0; pair < kGroup / 2; ++pair) {
            const int at = pair * kHalf * 2;
            if constexpr (S::kMultipliesPairs) {
                typename S::Pairs w[V];
                for (int v = 0; v < V; ++v) w[v] = S::load_pairs(b[v] + at);
                for (int r = 0; r < R; ++r) {
                    const auto x = S::set1_pair(a.at(r) + 2 * pair);
                    for (int v = 0; v < V; ++v) sum[r][v] = S::dot(sum[r][v], x, w[v]);
                }
            } else {
                typename S::Reg first[V], second[V];
                for (int v = 0; v < V; ++v) first[v] = S::load_first(b[v] + at);
                multiply<R>(sum, a.from(0, 2 * pair), first);
                for (int v = 0; v < V; ++v) second[v] = S::load_second(b[v] + at);
                multiply<R>(sum, a.from(0, 2 * pair + 1), second);
            }
        }
    }

    template <int R, int V, class Rows>
    static void multiply(typename S::Reg (&sum)[R][V], const Rows& a,
                         const typename S::Reg (&w)[V]) {
        for (int r = 0; r < R; ++r) {
            const auto x = S::set1(*a.at(r));
            for (int v = 0; v < V; ++v) sum[r][v] = S::fma(x, w[v], sum[r][v]);
        }
    }

    template <int R, int V, class Rows>
    static void step(typename S::Reg (&sum)[R][V], const Rows& a, const float* const (&b)[V]) {
        for (int k = 0; k < kGroup; ++k) {
            typename S::Reg w[V];
            for (int v = 0; v < V; ++v) w[v] = S::load(b[v] + k * kHalf);
            multiply<R>(sum, a.from(0, k), w);
        }
    }
};

}  // namespace
}  // namespace ramet
