// The products of attention in tiles (AMX-BF16); float32 stays with the vectors.
#pragma once

#include <immintrin.h>

#include "attention_products.h"
#include "matmul_amx.h"

namespace ramet {
namespace {

struct AmxProducts {
    using Vectors = VectorProducts<Avx512Simd>;

    static void scores(const float* keys, const float* queries, int num_groups, int first_tile,
                       int last_tile, float* out) {
        Vectors::scores(keys, queries, num_groups, first_tile, last_tile, out);
    }

    static void values(const float* weights, const float* values, int first_group, int last_group,
                       int num_rows, int dim, float* out) {
        Vectors::values(weights, values, first_group, last_group, num_rows, dim, out);
    }

    // Tiles come in twos, as groups of 32 positions do: two chains of sums hide each other's latency.
    static void scores(const bf16* keys, const bf16* queries, int num_groups, int first_tile,
                       int last_tile, float* out) {
        const std::size_t stride = static_cast<std::size_t>(num_groups) * kSquare;
        for (int tile = first_tile; tile < last_tile; tile += 2) {
            const bf16* k = keys + tile * stride;
            float* target = out + tile * kTileRows * kHalf;
            _tile_zero(0);
            _tile_zero(1);
            for (int group = 0; group < num_groups; ++group) {
                _tile_loadd(4, queries + group * kSquare, kRowBytes);
                _tile_loadd(5, k + group * kSquare, kRowBytes);
                _tile_loadd(6, k + stride + group * kSquare, kRowBytes);
                _tile_dpbf16ps(0, 5, 4);
                _tile_dpbf16ps(1, 6, 4);
            }
            _tile_stored(0, target, kRowBytes);
            _tile_stored(1, target + kTileRows * kHalf, kRowBytes);
        }
    }

    // Always 16 rows: those past num_rows are rubbish.
    static void values(const bf16* weights, const bf16* values, int first_group, int last_group,
                       int /*num_rows*/, int dim, float* out) {
        const std::size_t row = dim * sizeof(float);
        const int num_tiles = dim / kHalf;
        int tile = 0;
        for (; tile + 4 <= num_tiles; tile += 4) {
            float* target = out + tile * kHalf;
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            for (int group = first_group; group < last_group; ++group) {
                const bf16* v = values + (group * num_tiles + tile) * kSquare;
                _tile_loadd(4, weights + group * kSquare, kRowBytes);
                _tile_loadd(5, v, kRowBytes);
                _tile_dpbf16ps(0, 4, 5);
                _tile_loadd(6, v + kSquare, kRowBytes);
                _tile_dpbf16ps(1, 4, 6);
                _tile_loadd(5, v + 2 * kSquare, kRowBytes);
                _tile_dpbf16ps(2, 4, 5);
                _tile_loadd(6, v + 3 * kSquare, kRowBytes);
                _tile_dpbf16ps(3, 4, 6);
            }
            _tile_stored(0, target, row);
            _tile_stored(1, target + kHalf, row);
            _tile_stored(2, target + 2 * kHalf, row);
            _tile_stored(3, target + 3 * kHalf, row);
        }
        // The head dim is padded to 32.
        for (; tile < num_tiles; tile += 2) {
            float* target = out + tile * kHalf;
            _tile_zero(0);
            _tile_zero(1);
            for (int group = first_group; group < last_group; ++group) {
                const bf16* v = values + (group * num_tiles + tile) * kSquare;
                _tile_loadd(4, weights + group * kSquare, kRowBytes);
                _tile_loadd(5, v, kRowBytes);
                _tile_dpbf16ps(0, 4, 5);
                _tile_loadd(6, v + kSquare, kRowBytes);
                _tile_dpbf16ps(1, 4, 6);
            }
            _tile_stored(0, target, row);
            _tile_stored(1, target + kHalf, row);
        }
    }

    static void begin() { AmxMatmul::begin(); }
    static void end() { AmxMatmul::end(); }

  private:
    static constexpr int kRowBytes = 64;
};

}  // namespace
}  // namespace ramet
