// The two products of attention: an element is one running sum over the reduced dimension in rising order.
//
// Both take rows of activations (queries, or weights of positions) as they lie, and tiles of 16 positions:
//   keys      [reduced dimension][16 positions], bfloat16 in pairs of it: [pair][16][2]
//   values    [16 positions][dim], bfloat16 in pairs of them: [pair][dim][2]
#pragma once

#include <type_traits>

#include "common.h"

namespace ramet {
namespace {

// Tiles of 16 positions in a split.
constexpr int kSplitTiles = kSplit / kHalf;

// Keys or values of a split of one head.
template <class T>
struct Tiles {
    const T* const* at;  // of each tile
    // Tiles as large, to be fetched while these are read; or null.
    const T* const* ahead;
};

template <class S>
struct VectorProducts {
    // Elements of the activations, where the weights' are T. Those that are widened for every
    // product are kept wide.
    template <class T>
    using Activation = std::conditional_t<S::kMultipliesPairs, T, float>;

    // Rows of a block.
    static constexpr int kBlockRows = 16;
    // Whether tiles of values must lie one after another, up to the end of a group of 32 positions.
    template <class T>
    static constexpr bool kJoinsValues = false;

    // scores[row][position] = queries x keys, for tiles of 16 positions; rows of kSplit scores.
    // queries: rows of num_groups * 32. An even number of tiles.
    template <class A, class T>
    static void scores(const A* queries, const Tiles<T>& keys, int num_groups, int num_rows, int first_tile,
                       int last_tile, float* out) {
        const KeyTiles<T> tiles{{keys.at + first_tile, keys.ahead ? keys.ahead + first_tile : nullptr}};
        const int num_columns = (last_tile - first_tile) * kHalf;
        with_stride(num_groups * kGroup, [&](auto stride) {
            product(Rows<A, decltype(stride)>{queries, stride}, tiles, num_groups, num_rows,
                    num_columns, out + first_tile * kHalf, kSplit);
        });
    }

    // out[row][dim] = weights x values, over tiles of 16 positions. weights: rows of kSplit.
    template <class A, class T>
    static void values(const A* weights, const Tiles<T>& values, int first_tile, int last_tile,
                       int num_rows, int dim, float* out) {
        const Rows<A, Fixed<kSplit>> rows{weights + first_tile * kHalf, {}};
        with_stride(dim, [&](auto stride) {
            const ValueTiles<T, decltype(stride)> tiles{
                {values.at + first_tile, values.ahead ? values.ahead + first_tile : nullptr}, stride};
            product(rows, tiles, last_tile - first_tile, num_rows, dim, out, dim);
        });
    }

    // Whether so many rows pay for tiles of float32 in place of T, which make the same products.
    template <class T>
    static constexpr bool widens(int num_rows) {
        return sizeof(Activation<T>) != sizeof(T) && num_rows > kFewRows;
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

    // Elements of one column that lie together.
    template <class T>
    static constexpr int kPerColumn = sizeof(T) == sizeof(bf16) ? 2 : 1;

    // What a product is of, in steps of kDepth of the reduced dimension: where `column` of a step is, of which
    // row_size() elements further on are the next one's or pair's.
    template <class T>
    struct KeyTiles {
        using Element = T;
        static constexpr int kDepth = kGroup;
        Tiles<T> tiles;

        bool fetches() const { return tiles.ahead; }
        static constexpr int row_size() { return kHalf * kPerColumn<T>; }
        const T* at(int step, int column) const { return in(tiles.at, step, column); }
        const T* ahead(int step, int column) const { return in(tiles.ahead, step, column); }

      private:
        static const T* in(const T* const* of, int step, int column) {
            return of[column / kHalf] + step * kDepth * kHalf + column % kHalf * kPerColumn<T>;
        }
    };

    template <class T, class Stride>
    struct ValueTiles {
        using Element = T;
        static constexpr int kDepth = kHalf;
        Tiles<T> tiles;
        Stride dim;

        bool fetches() const { return tiles.ahead; }
        constexpr int row_size() const { return dim * kPerColumn<T>; }
        const T* at(int step, int column) const { return tiles.at[step] + column * kPerColumn<T>; }
        const T* ahead(int step, int column) const {
            return tiles.ahead[step] + column * kPerColumn<T>;
        }
    };

    // As many sums as the registers hold beside what they are made of: 32 of them with AVX-512, 16 otherwise.
    static constexpr int kRows = S::W == 16 ? 8 : 4;
    static constexpr int kSums = 2 * kRows;

    // Vectors of columns at a time for R rows: so many sums that none waits for the one before it.
    template <int R>
    static constexpr int kVectors = 4 * R <= kSums ? 4 : 2;

    // c[row][column] for num_rows rows and num_columns columns, a multiple of 32. The first rows fetch.
    template <class Rows, class B>
    static void product(const Rows& a, const B& b, int num_steps, int num_rows, int num_columns,
                        float* c, std::size_t ldc) {
        int row = 0;
        for (; row + kRows <= num_rows; row += kRows) {
            if (row == 0 && b.fetches()) {
                rows<kRows, true>(a, b, num_steps, num_columns, c, ldc);
            } else {
                rows<kRows, false>(a.from(row, 0), b, num_steps, num_columns, c + row * ldc, ldc);
            }
        }
        if (row == 0 && b.fetches()) {
            fewer_rows<kRows - 1, true>(num_rows, a, b, num_steps, num_columns, c, ldc);
        } else {
            fewer_rows<kRows - 1, false>(num_rows - row, a.from(row, 0), b, num_steps, num_columns,
                                         c + row * ldc, ldc);
        }
    }

    // At most R.
    template <int R, bool Fetch, class Rows, class B>
    static void fewer_rows(int num_rows, const Rows& a, const B& b, int num_steps, int num_columns,
                           float* c, std::size_t ldc) {
        if constexpr (R > 0) {
            if (num_rows == R) {
                rows<R, Fetch>(a, b, num_steps, num_columns, c, ldc);
            } else {
                fewer_rows<R - 1, Fetch>(num_rows, a, b, num_steps, num_columns, c, ldc);
            }
        }
    }

    template <int R, bool Fetch, class Rows, class B>
    static void rows(const Rows& a, const B& b, int num_steps, int num_columns, float* c,
                     std::size_t ldc) {
        int column = 0;
        for (; column + kVectors<R> * S::W <= num_columns; column += kVectors<R> * S::W) {
            columns<R, kVectors<R>, Fetch>(a, b, num_steps, column, c, ldc);
        }
        for (; column < num_columns; column += 2 * S::W) {
            columns<R, 2, Fetch>(a, b, num_steps, column, c, ldc);
        }
    }

    template <int R, int V, bool Fetch, class Rows, class B>
    static void columns(const Rows& a, const B& b, int num_steps, int column, float* c,
                        std::size_t ldc) {
        typename S::Reg sum[R][V];
        for (int r = 0; r < R; ++r) {
            for (int v = 0; v < V; ++v) sum[r][v] = S::zero();
        }
        for (int step = 0; step < num_steps; ++step) {
            const typename B::Element* at[V];
            const typename B::Element* ahead[V];
            for (int v = 0; v < V; ++v) {
                at[v] = b.at(step, column + v * S::W);
                if constexpr (Fetch) ahead[v] = b.ahead(step, column + v * S::W);
            }
            multiply_step<R, Fetch>(sum, a.from(0, step * B::kDepth), b, at, ahead);
        }
        for (int r = 0; r < R; ++r) {
            for (int v = 0; v < V; ++v) S::store(c + r * ldc + column + v * S::W, sum[r][v]);
        }
    }

    // Pairs are multiplied at once, or first their first elements and then their second.
    template <int R, bool Fetch, int V, class Rows, class B>
    static void multiply_step(typename S::Reg (&sum)[R][V], const Rows& a, const B& b,
                              const bf16* const (&at)[V], const bf16* const (&ahead)[V]) {
        for (int pair = 0; pair < B::kDepth / 2; ++pair) {
            const int offset = pair * b.row_size();
            if constexpr (Fetch) fetch(ahead, offset);
            if constexpr (S::kMultipliesPairs) {
                typename S::Pairs w[V];
                for (int v = 0; v < V; ++v) w[v] = S::load_pairs(at[v] + offset);
                for (int r = 0; r < R; ++r) {
                    const auto x = S::set1_pair(a.at(r) + 2 * pair);
                    for (int v = 0; v < V; ++v) sum[r][v] = S::dot(sum[r][v], x, w[v]);
                }
            } else {
                typename S::Reg first[V], second[V];
                for (int v = 0; v < V; ++v) first[v] = S::load_first(at[v] + offset);
                multiply<R>(sum, a.from(0, 2 * pair), first);
                for (int v = 0; v < V; ++v) second[v] = S::load_second(at[v] + offset);
                multiply<R>(sum, a.from(0, 2 * pair + 1), second);
            }
        }
    }

    template <int R, bool Fetch, int V, class Rows, class B>
    static void multiply_step(typename S::Reg (&sum)[R][V], const Rows& a, const B& b,
                              const float* const (&at)[V], const float* const (&ahead)[V]) {
        for (int k = 0; k < B::kDepth; ++k) {
            if constexpr (Fetch) fetch(ahead, k * b.row_size());
            typename S::Reg w[V];
            for (int v = 0; v < V; ++v) w[v] = S::load(at[v] + k * b.row_size());
            multiply<R>(sum, a.from(0, k), w);
        }
    }

    // 16 columns are a cache line.
    template <int V, class T>
    static void fetch(const T* const (&ahead)[V], int offset) {
        for (int v = 0; v < V; ++v) {
            if (v * S::W % kHalf == 0) __builtin_prefetch(ahead[v] + offset, 0, 2);
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
};

}  // namespace
}  // namespace ramet
