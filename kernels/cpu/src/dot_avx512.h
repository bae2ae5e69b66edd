// Integer products of bytes with AVX-512: by VNNI where the compiler is told so, else as in dot_avx2.h.
#pragma once

#include "quantized_weight.h"
#include "simd_avx512.h"

namespace ramet {
namespace {

struct Avx512Dot {
    static constexpr bool kHasTiles = false;
    using Integers = __m512i;

    // As in dot_portable.h.
    template <int kBits, int R>
    static void group(const std::uint8_t* values, const std::int8_t* rows, Integers* sums) {
        const __m512i half = _mm512_set1_epi8(15);
        Sum sum[R];
#pragma GCC unroll 8
        for (int i = 0; i < kBits; ++i) {
            const __m512i bytes = _mm512_load_si512(values + i * kStride);
            const __m512i second = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), half);
            const __m512i first = kBits == 8 && kWhole ? bytes : _mm512_and_si512(bytes, half);
            for (int r = 0; r < R; ++r) {
                const std::int8_t* row = rows + r * kGroup;
                if (kBits == 4) {
                    sum[r].add(first, quad(row + 2 * i * kQuad));
                    sum[r].add(second, quad(row + (2 * i + 1) * kQuad));
                } else {
                    sum[r].add(first, quad(row + i * kQuad));
                    if (!kWhole) sum[r].add_high(second, quad(row + i * kQuad));
                }
            }
        }
        for (int r = 0; r < R; ++r) sums[r] = sum[r].total();
    }

    static __m512 to_floats(Integers sums, std::int32_t less) {
        return _mm512_cvtepi32_ps(_mm512_sub_epi32(sums, _mm512_set1_epi32(less)));
    }

    static __m512 load_halves(const f16* p) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }

  private:
    static constexpr int kStride = kHalf * kQuad;

#if defined(__AVX512VNNI__)
    // Whether whole bytes are multiplied.
    static constexpr bool kWhole = true;
    struct Sum {
        __m512i whole = _mm512_setzero_si512();
        void add(__m512i a, __m512i b) { whole = _mm512_dpbusd_epi32(whole, a, b); }
        void add_high(__m512i, __m512i) {}
        __m512i total() const { return whole; }
    };
#else
    static constexpr bool kWhole = false;
    struct Sum {
        __m512i low = _mm512_setzero_si512(), high = _mm512_setzero_si512();
        void add(__m512i a, __m512i b) { add_to(low, _mm512_maddubs_epi16(a, b)); }
        void add_high(__m512i a, __m512i b) { add_to(high, _mm512_maddubs_epi16(a, b)); }
        // With saturation, which never happens, so that GCC keeps the order: see Avx2Dot::add.
        static void add_to(__m512i& sum, __m512i product) {
            sum = _mm512_adds_epi16(sum, product);
        }
        __m512i total() const {
            return _mm512_add_epi32(_mm512_madd_epi16(low, _mm512_set1_epi16(1)),
                                    _mm512_madd_epi16(high, _mm512_set1_epi16(16)));
        }
    };
#endif

    static __m512i quad(const std::int8_t* p) {
        std::int32_t four;
        std::memcpy(&four, p, sizeof four);
        return _mm512_set1_epi32(four);
    }
};

}  // namespace
}  // namespace ramet
