// The products of attention in tiles (AMX-BF16); float32 stays with the vectors.
#pragma once

#include <immintrin.h>

#include "attention_products.h"
#include "matmul_amx.h"

namespace ramet {
namespace {

// Rows come by 16 or 32: those past num_rows are rubbish.
struct AmxProducts {
    using Vectors = VectorProducts<Avx512Simd>;

    template <class T>
    using Activation = T;

    // Two tiles of rows by two of columns: every tile that is loaded is multiplied twice.
    static constexpr int kBlockRows = 32;

    static void scores(const float* queries, const float* keys, int num_groups, int num_rows,
                       int first_tile, int last_tile, float* out) {
        Vectors::scores(queries, keys, num_groups, num_rows, first_tile, last_tile, out);
    }

    static void values(const float* weights, const float* values, int first_group, int last_group,
                       int num_rows, int dim, float* out) {
        Vectors::values(weights, values, first_group, last_group, num_rows, dim, out);
    }

    // Tiles come in twos, as groups of 32 positions do.
    static void scores(const bf16* queries, const bf16* keys, int num_groups, int num_rows,
                       int first_tile, int last_tile, float* out) {
        const Operand a{queries, static_cast<std::size_t>(num_groups) * kGroup};
        const std::size_t tile_size = static_cast<std::size_t>(num_groups) * kSquare;
        for (int tile = first_tile; tile < last_tile; tile += 2) {
            const bf16* b = keys + tile * tile_size;
            product(a, b, b + tile_size, kSquare, num_groups, num_rows, out + tile * kHalf, kSplit);
        }
    }

    // The head dim is padded to 32: two tiles.
    static void values(const bf16* weights, const bf16* values, int first_group, int last_group,
                       int num_rows, int dim, float* out) {
        const Operand a{weights + first_group * kGroup, kSplit};
        const std::size_t group_size = static_cast<std::size_t>(dim) * kGroup;
        for (int tile = 0; tile < dim / kHalf; tile += 2) {
            const bf16* b = values + first_group * group_size + tile * kSquare;
            product(a, b, b + kSquare, group_size, last_group - first_group, num_rows,
                    out + tile * kHalf, dim);
        }
    }

    static void begin() { AmxMatmul::begin(); }
    static void end() { AmxMatmul::end(); }

  private:
    static constexpr int kRowBytes = 64;

    struct Operand {
        const bf16* rows;
        std::size_t stride;
    };

    // 32 columns of c: left and right are their squares of the first group.
    static void product(Operand a, const bf16* left, const bf16* right, std::size_t group_stride,
                        int num_groups, int num_rows, float* c, std::size_t ldc) {
        if (num_rows > kTileRows) {
            two_tiles(a, left, right, group_stride, num_groups, c, ldc);
        } else {
            one_tile(a, left, right, group_stride, num_groups, c, ldc);
        }
    }

    static void one_tile(Operand a, const bf16* left, const bf16* right, std::size_t group_stride,
                         int num_groups, float* c, std::size_t ldc) {
        const std::size_t a_bytes = a.stride * sizeof(bf16), c_bytes = ldc * sizeof(float);
        _tile_zero(0);
        _tile_zero(1);
        for (int group = 0; group < num_groups; ++group) {
            _tile_loadd(4, a.rows + group * kGroup, a_bytes);
            _tile_loadd(6, left + group * group_stride, kRowBytes);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, right + group * group_stride, kRowBytes);
            _tile_dpbf16ps(1, 4, 7);
        }
        _tile_stored(0, c, c_bytes);
        _tile_stored(1, c + kHalf, c_bytes);
    }

    static void two_tiles(Operand a, const bf16* left, const bf16* right, std::size_t group_stride,
                          int num_groups, float* c, std::size_t ldc) {
        const std::size_t a_bytes = a.stride * sizeof(bf16), c_bytes = ldc * sizeof(float);
        const bf16* more_rows = a.rows + kTileRows * a.stride;
        float* more_c = c + kTileRows * ldc;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int group = 0; group < num_groups; ++group) {
            _tile_loadd(4, a.rows + group * kGroup, a_bytes);
            _tile_loadd(6, left + group * group_stride, kRowBytes);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, right + group * group_stride, kRowBytes);
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
