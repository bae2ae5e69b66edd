// The products of attention in tiles (AMX-BF16); float32 stays with the vectors.
#pragma once

#include <immintrin.h>

#include "attention_products.h"
#include "matmul_amx.h"

namespace ramet {
namespace {

// Of 32 x 16 elements.
constexpr int kSquare = kGroup * kHalf;

// Rows come by 16 or 32: those past num_rows are rubbish.
struct AmxProducts {
    using Vectors = VectorProducts<Avx512Simd>;

    template <class T>
    using Activation = T;

    // Two tiles of rows by two of columns: every tile that is loaded is multiplied twice.
    static constexpr int kBlockRows = 32;

    template <class T>
    static constexpr bool kJoinsValues = std::is_same_v<T, bf16>;

    static void scores(const float* queries, const Tiles<float>& keys, int num_groups, int num_rows,
                       int first_tile, int last_tile, float* out) {
        Vectors::scores(queries, keys, num_groups, num_rows, first_tile, last_tile, out);
    }

    static void values(const float* weights, const Tiles<float>& values, int first_tile,
                       int last_tile, int num_rows, int dim, float* out) {
        Vectors::values(weights, values, first_tile, last_tile, num_rows, dim, out);
    }

    // Tiles come in twos, as groups of 32 positions do.
    static void scores(const bf16* queries, const Tiles<bf16>& keys, int num_groups, int num_rows,
                       int first_tile, int last_tile, float* out) {
        const Operand a{queries, static_cast<std::size_t>(num_groups) * kGroup};
        for (int tile = first_tile; tile < last_tile; tile += 2) {
            Weights b{keys.at[tile], keys.at[tile + 1], kSquare, 2 * kHalf};
            if (keys.ahead) b.ahead = {keys.ahead[tile], keys.ahead[tile + 1]};
            product(a, b, num_groups, num_rows, out + tile * kHalf, kSplit);
        }
    }

    // The head dim is padded to 32: two tiles. Values lie one after another, so that 32 positions are as one
    // tile; after the last of them are zeros.
    static void values(const bf16* weights, const Tiles<bf16>& values, int first_tile, int last_tile,
                       int num_rows, int dim, float* out) {
        const Operand a{weights + first_tile * kHalf, kSplit};
        const int num_groups = ceil_div(last_tile - first_tile, 2);
        for (int column = 0; column < dim; column += kGroup) {
            const bf16* b = values.at[first_tile] + 2 * column;
            const auto row_size = static_cast<std::size_t>(dim) * 2;
            product(a, Weights{b, b + 2 * kHalf, row_size * kHalf, row_size}, num_groups, num_rows,
                    out + column, dim);
        }
    }

    static void begin() { AmxMatmul::begin(); }
    static void end() { AmxMatmul::end(); }

  private:
    struct Operand {
        const bf16* rows;
        std::size_t stride;
    };

    // Two tiles of 16 columns: those of the first group, and how far away the next group's and the next row are.
    struct Weights {
        const bf16 *left, *right;
        std::size_t group_stride, row_stride;
        // To be fetched, a square for each group; or null.
        struct {
            const bf16 *left, *right;
        } ahead = {nullptr, nullptr};

        std::size_t row_bytes() const { return row_stride * sizeof(bf16); }

        void fetch(int group) const {
            if (!ahead.left) return;
            for (int at = group * kSquare; at < (group + 1) * kSquare; at += kGroup) {
                __builtin_prefetch(ahead.left + at, 0, 2);
                __builtin_prefetch(ahead.right + at, 0, 2);
            }
        }
    };

    // 32 columns of c.
    static void product(const Operand& a, const Weights& b, int num_groups, int num_rows, float* c,
                        std::size_t ldc) {
        if (num_rows > kTileRows) {
            two_tiles(a, b, num_groups, c, ldc);
        } else {
            one_tile(a, b, num_groups, c, ldc);
        }
    }

    static void one_tile(const Operand& a, const Weights& b, int num_groups, float* c,
                         std::size_t ldc) {
        const std::size_t a_bytes = a.stride * sizeof(bf16), c_bytes = ldc * sizeof(float);
        _tile_zero(0);
        _tile_zero(1);
        for (int group = 0; group < num_groups; ++group) {
            b.fetch(group);
            _tile_loadd(4, a.rows + group * kGroup, a_bytes);
            _tile_loadd(6, b.left + group * b.group_stride, b.row_bytes());
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, b.right + group * b.group_stride, b.row_bytes());
            _tile_dpbf16ps(1, 4, 7);
        }
        _tile_stored(0, c, c_bytes);
        _tile_stored(1, c + kHalf, c_bytes);
    }

    static void two_tiles(const Operand& a, const Weights& b, int num_groups, float* c,
                          std::size_t ldc) {
        const std::size_t a_bytes = a.stride * sizeof(bf16), c_bytes = ldc * sizeof(float);
        const bf16* more_rows = a.rows + kTileRows * a.stride;
        float* more_c = c + kTileRows * ldc;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int group = 0; group < num_groups; ++group) {
            b.fetch(group);
            _tile_loadd(4, a.rows + group * kGroup, a_bytes);
            _tile_loadd(6, b.left + group * b.group_stride, b.row_bytes());
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, b.right + group * b.group_stride, b.row_bytes());
            _tile_dpbf16ps(1, 4, 7);
            _tile_loadd(5, more_rows + group * kGroup, a_bytes);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, c, c_bytes);
        _tile_stored(1, c + kHalf, c_bytes);
        _tile_stored(2, more_c, c_bytes);
        _tile_stored(3, more_c + kHalf, c_bytes);
    }
};

}  // namespace
}  // namespace ramet
