// Integer products of bytes with AVX2. Bytes are multiplied by halves: the sums of 32 products of 4 and 8 bits
// fit 16, so no product saturates and all but the last step stay 16 bits wide.
#pragma once

#include "quantized_weight.h"
#include "simd_avx2.h"

namespace ramet {
namespace {

struct Avx2Dot {
    static constexpr bool kHasTiles = false;
    using Integers = __m256i;

    // As in dot_portable.h.
    template <int kBits, int R>
    static void group(const std::uint8_t* values, const std::int8_t* rows, Integers* sums) {
        const __m256i half = _mm256_set1_epi8(15);
        __m256i low[R], high[R];
        for (int r = 0; r < R; ++r) low[r] = high[r] = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (int i = 0; i < kBits; ++i) {
            const __m256i bytes =
                _mm256_load_si256(reinterpret_cast<const __m256i*>(values + i * kStride));
            const __m256i first = _mm256_and_si256(bytes, half);
            const __m256i second = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), half);
            for (int r = 0; r < R; ++r) {
                const std::int8_t* row = rows + r * kGroup;
                // With 8 bits both halves meet the same quad, and the high ones count 16 times.
                const __m256i a = quad(row + (kBits == 8 ? i : 2 * i) * kQuad);
                const __m256i b = kBits == 8 ? a : quad(row + (2 * i + 1) * kQuad);
                add(low[r], _mm256_maddubs_epi16(first, a));
                add(kBits == 8 ? high[r] : low[r], _mm256_maddubs_epi16(second, b));
            }
        }
        for (int r = 0; r < R; ++r) {
            sums[r] = _mm256_madd_epi16(low[r], _mm256_set1_epi16(1));
            if (kBits == 8) {
                const __m256i sixteens = _mm256_madd_epi16(high[r], _mm256_set1_epi16(16));
                sums[r] = _mm256_add_epi32(sums[r], sixteens);
            }
        }
    }

    static __m256 to_floats(Integers sums, std::int32_t less) {
        return _mm256_cvtepi32_ps(_mm256_sub_epi32(sums, _mm256_set1_epi32(less)));
    }

    static __m256 load_halves(const f16* p) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    }

  private:
    static constexpr int kStride = kHalf * kQuad;

    // In this order: left to itself GCC makes all the products first, for which there are no registers.
    // Saturating additions would keep it too, but have half the units of these on AMD's processors.
    static void add(__m256i& sum, __m256i product) {
        sum = _mm256_add_epi16(sum, product);
        __asm__("" : "+x"(sum));
    }

    static __m256i quad(const std::int8_t* p) {
        std::int32_t four;
        std::memcpy(&four, p, sizeof four);
        return _mm256_set1_epi32(four);
    }
};

}  // namespace
}  // namespace ramet
