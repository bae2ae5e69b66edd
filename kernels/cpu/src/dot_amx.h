// Integer products of bytes in tiles (AMX-INT8) where there are rows enough; for fewer, as in dot_avx512.h.
#pragma once

#include <immintrin.h>

#include "dot_avx512.h"
#include "quantized_job.h"

namespace ramet {
namespace {

struct AmxDot : Avx512Dot {
    static constexpr bool kHasTiles = true;
    // Below this the vectors are done sooner than a tile.
    static constexpr int kFewestTileRows = 8;

    // Of a group: [row tiles][halves of the panel][16 rows][16 columns].
    using Sums = std::int32_t[2][2][kTileRows][kHalf];

    static void begin() {
        // See AmxMatmul::begin. Tiles 0 to 3 are sums, 4 and 5 rows, 6 and 7 values.
        alignas(64) volatile std::uint8_t config[64] = {};
        config[0] = 1;
        for (int tile = 0; tile < 8; ++tile) {
            config[16 + 2 * tile] = tile == 4 || tile == 5 ? kGroup : kRowBytes;
            config[48 + tile] = tile < 6 ? kTileRows : kQuads;
        }
        __asm__ volatile("" ::: "memory");
        _tile_loadconfig(const_cast<std::uint8_t*>(config));
    }

    static void end() { _tile_release(); }

    // The products of one group begin: values of a panel by one or two tiles of rows. second: null if
    // there is one.
    template <int kBits>
    static void start(const std::uint8_t* values, const QuantizedTile& first,
                      const QuantizedTile* second) {
        alignas(64) std::uint8_t whole[2 * kHalfBytes];
        if (kBits == 4) {
            widen(values, whole);
            // GCC does not know that loading a tile reads memory.
            __asm__ volatile("" ::: "memory");
            values = whole;
        }
        _tile_zero(0);
        _tile_zero(1);
        _tile_loadd(4, first.values, kGroup);
        _tile_loadd(6, values, kRowBytes);
        _tile_dpbsud(0, 4, 6);
        _tile_loadd(7, values + kHalfBytes, kRowBytes);
        _tile_dpbsud(1, 4, 7);
        if (!second) return;
        _tile_zero(2);
        _tile_zero(3);
        _tile_loadd(5, second->values, kGroup);
        _tile_dpbsud(2, 5, 6);
        _tile_dpbsud(3, 5, 7);
    }

    // Their end.
    static void store(Sums& sums, bool two) {
        _tile_stored(0, sums[0][0], kRowBytes);
        _tile_stored(1, sums[0][1], kRowBytes);
        if (!two) return;
        _tile_stored(2, sums[1][0], kRowBytes);
        _tile_stored(3, sums[1][1], kRowBytes);
    }

    static Integers load(const std::int32_t* p) { return _mm512_loadu_si512(p); }

  private:
    static constexpr int kRowBytes = 64;
    static constexpr int kHalfBytes = kQuads * kRowBytes;

    // 4 bits to a byte each.
    static void widen(const std::uint8_t* values, std::uint8_t* whole) {
        const __m512i half = _mm512_set1_epi8(15);
        for (int i = 0; i < kQuads; ++i) {
            const __m512i bytes = _mm512_load_si512(values + i * kRowBytes);
            _mm512_store_si512(whole + 2 * i * kRowBytes, _mm512_and_si512(bytes, half));
            _mm512_store_si512(whole + (2 * i + 1) * kRowBytes,
                               _mm512_and_si512(_mm512_srli_epi16(bytes, 4), half));
        }
    }
};

}  // namespace
}  // namespace ramet
