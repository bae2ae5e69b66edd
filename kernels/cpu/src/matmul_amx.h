// The matrix microkernel in tiles (AMX-BF16); float32 stays with the vectors.
//
// Tiles are always 16 x 64 bytes: activations are padded to whole tiles, and rows of padding make rows of
// rubbish that nobody reads. The sum of an element runs over groups of 32 in rising order, so it
// does not depend on how many rows a call has.
#pragma once

#include <immintrin.h>

#include "fetch_ahead.h"
#include "matmul_vector.h"
#include "simd_avx512.h"

namespace ramet {
namespace {

struct AmxMatmul {
    template <class T>
    using Operand = T;

    static constexpr int kExpandingRows = 0;
    static constexpr bool kFetchesNear = false;
    static constexpr int kRows = 2 * kTileRows;

    template <class T>
    static constexpr int kGroupsAtOnce = 18;

    template <bool kRowsPass>
    static void block(const bf16* a, std::size_t a_tile_stride, const bf16* b, int num_groups,
                      float* c, std::size_t ldc, int m, bool more, FetchAhead& ahead) {
        if (m > kTileRows) {
            two_tiles<kRowsPass>(a, a_tile_stride, b, num_groups, c, ldc, more, ahead);
        } else {
            one_tile(a, b, num_groups, c, ldc, more, ahead);
        }
    }

    template <bool kRowsPass>
    static void block(const float* a, std::size_t a_tile_stride, const float* b, int num_groups,
                      float* c, std::size_t ldc, int m, bool more, FetchAhead& ahead) {
        VectorMatmul<Avx512Simd>::block<kRowsPass>(a, a_tile_stride, b, num_groups, c, ldc, m, more,
                                                   ahead);
    }

    static void begin() {
        // In memory that the compiler must write: GCC 12's _tile_loadconfig says that it reads 8 bytes.
        alignas(64) volatile std::uint8_t config[64] = {};
        config[0] = 1;
        for (int tile = 0; tile < 8; ++tile) {
            config[16 + 2 * tile] = 64;
            config[48 + tile] = kTileRows;
        }
        __asm__ volatile("" ::: "memory");
        _tile_loadconfig(const_cast<std::uint8_t*>(config));
    }

    // Tile state that is in use makes every switch of threads save 8 KiB.
    static void end() { _tile_release(); }

  private:
    static constexpr int kTile = kTileRows * kGroup;
    static constexpr int kRowBytes = 64;

    static void one_tile(const bf16* a, const bf16* b, int num_groups, float* c, std::size_t ldc,
                         bool more, FetchAhead& shared) {
        FetchAhead ahead = shared;  // a copy that the tiles' stores cannot alias
        const std::size_t row = ldc * sizeof(float);
        if (more) {
            _tile_loadd(0, c, row);
            _tile_loadd(1, c + kHalf, row);
        } else {
            _tile_zero(0);
            _tile_zero(1);
        }
        for (int group = 0; group < num_groups; ++group) {
            ahead.step();
            _tile_loadd(4, a, kRowBytes);
            _tile_loadd(6, b, kRowBytes);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, b + kTile, kRowBytes);
            _tile_dpbf16ps(1, 4, 7);
            a += kTile;
            b += 2 * kTile;
        }
        shared = ahead;
        _tile_stored(0, c, row);
        _tile_stored(1, c + kHalf, row);
    }

    // Rows that pass by while a panel stays must not push it out of the first-level cache: their loads
    // say so.
    template <bool kRowsPass>
    static void two_tiles(const bf16* a, std::size_t a_tile_stride, const bf16* b, int num_groups,
                          float* c, std::size_t ldc, bool more, FetchAhead& shared) {
        FetchAhead ahead = shared;
        const bf16* a2 = a + a_tile_stride;
        float* c2 = c + kTileRows * ldc;
        const std::size_t row = ldc * sizeof(float);
        if (more) {
            _tile_loadd(0, c, row);
            _tile_loadd(1, c + kHalf, row);
            _tile_loadd(2, c2, row);
            _tile_loadd(3, c2 + kHalf, row);
        } else {
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
        }
        for (int group = 0; group < num_groups; ++group) {
            ahead.step();
            _tile_loadd(6, b, kRowBytes);
            if (kRowsPass) {
                _tile_stream_loadd(4, a, kRowBytes);
            } else {
                _tile_loadd(4, a, kRowBytes);
            }
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, b + kTile, kRowBytes);
            _tile_dpbf16ps(1, 4, 7);
            if (kRowsPass) {
                _tile_stream_loadd(5, a2, kRowBytes);
            } else {
                _tile_loadd(5, a2, kRowBytes);
            }
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
            a += kTile;
            a2 += kTile;
            b += 2 * kTile;
        }
        shared = ahead;
        _tile_stored(0, c, row);
        _tile_stored(1, c + kHalf, row);
        _tile_stored(2, c2, row);
        _tile_stored(3, c2 + kHalf, row);
    }
};

}  // namespace
}  // namespace ramet
