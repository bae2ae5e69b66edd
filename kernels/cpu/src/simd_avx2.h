// Vectors of eight floats with AVX2 and FMA.
#pragma once

#include <immintrin.h>

#include "common.h"

namespace ramet {
namespace {

struct Avx2Simd {
    static constexpr int W = 8;
    static constexpr bool kMultipliesPairs = false;
    static constexpr bool kExpands = true;
    using Reg = __m256;
    struct Pairs {
        __m256 low, high;
    };

    // See compact_group.h.
    using Listed = __m256i;
    struct Vector {
        __m256i half[2];
    };
    static Listed load_listed(const std::uint8_t* bytes) {
        return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
    }
    static void expand_part(const std::uint8_t* part, Listed listed, Vector (&out)[4]) {
        const __m256i half = _mm256_set1_epi8(15);
        for (int h = 0; h < 2; ++h) {
            const auto* from = reinterpret_cast<const __m256i*>(part) + h;
            const __m256i codes = _mm256_load_si256(from);
            const __m256i second = _mm256_and_si256(_mm256_srli_epi16(codes, 4), half);
            const __m256i upper[2] = {_mm256_shuffle_epi8(listed, _mm256_and_si256(codes, half)),
                                      _mm256_shuffle_epi8(listed, second)};
            for (int i = 0; i < 2; ++i) {
                const __m256i lower = _mm256_load_si256(from + 2 * (1 + i));
                out[2 * i].half[h] = _mm256_unpacklo_epi8(lower, upper[i]);
                out[2 * i + 1].half[h] = _mm256_unpackhi_epi8(lower, upper[i]);
            }
        }
    }
    static void store_vector(bf16* p, const Vector& x) {
        for (int h = 0; h < 2; ++h) {
            _mm256_store_si256(reinterpret_cast<__m256i*>(p) + h, x.half[h]);
        }
    }

    static Reg zero() { return _mm256_setzero_ps(); }
    static Reg set1(float x) { return _mm256_set1_ps(x); }
    static Reg load(const float* p) { return _mm256_loadu_ps(p); }
    static Reg load(const bf16* p) {
        const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
    }
    static Reg load(const std::int8_t* p) {
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
    }
    template <int J>
    static Reg load_bytes(const std::uint32_t* words) {
        const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
        const __m256i shifted = _mm256_slli_epi32(all, 24 - 8 * J);
        return _mm256_cvtepi32_ps(_mm256_srai_epi32(shifted, 24));
    }
    static void store(float* p, Reg a) { _mm256_storeu_ps(p, a); }
    // Two vectors, one after the other.
    template <class T>
    static void store_two(T* p, Reg a, Reg b) {
        store(p, a);
        store(p + W, b);
    }
    static void store_exact_pairs(bf16* p, Reg first, Reg second) {
        const __m256i low = _mm256_srli_epi32(_mm256_castps_si256(first), 16);
        const __m256i pairs = _mm256_or_si256(low, _mm256_castps_si256(second));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), pairs);
    }
    // The nearest bfloat16 to each, in the low half of a word.
    static __m256i nearest(Reg a) {
        const __m256i bits = _mm256_castps_si256(a);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
        const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
        const __m256i nan = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
        const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
        return _mm256_blendv_epi8(rounded, nan, is_nan);
    }
    static void store(bf16* p, Reg a) {
        const __m256i words = nearest(a);
        const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(words),
                                                _mm256_extracti128_si256(words, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
    }
    static Reg rounded_to_bf16(Reg a) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(nearest(a), 16));
    }
    static Reg add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
    static Reg sub(Reg a, Reg b) { return _mm256_sub_ps(a, b); }
    static Reg mul(Reg a, Reg b) { return _mm256_mul_ps(a, b); }
    static Reg div(Reg a, Reg b) { return _mm256_div_ps(a, b); }
    static Reg reciprocal(Reg a) { return div(set1(1.0f), a); }
    static Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }
    static Reg max(Reg a, Reg b) { return _mm256_max_ps(a, b); }
    static Reg min(Reg a, Reg b) { return _mm256_min_ps(a, b); }
    static Reg zero_below(Reg a, Reg floor) {
        return _mm256_and_ps(a, _mm256_cmp_ps(a, floor, _CMP_NLT_UQ));
    }
    static float reduce_add(Reg a) {
        __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
        x = _mm_add_ps(x, _mm_movehl_ps(x, x));
        return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
    }
    static float reduce_max(Reg a) {
        __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
        x = _mm_max_ps(x, _mm_movehl_ps(x, x));
        return _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps(x, x, 1)));
    }
    static Reg round(Reg x) {
        return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
    static Reg scale_by_power(Reg a, Reg n) {
        const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
        const __m256 power = _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
        const __m256 normal = _mm256_cmp_ps(n, set1(-126.0f), _CMP_NLT_UQ);
        return _mm256_and_ps(_mm256_mul_ps(a, power), normal);
    }
    // From -127 on, whose power is written as zero.
    static Reg bounded_below(Reg x) { return _mm256_max_ps(set1(-127.0f), x); }
    static Reg fraction(Reg x) {
        const __m256 bounded = bounded_below(x);
        return _mm256_sub_ps(bounded, _mm256_floor_ps(bounded));
    }
    static Reg scale_by_floor(Reg a, Reg x) {
        const __m256i n = _mm256_cvtps_epi32(_mm256_floor_ps(bounded_below(x)));
        const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23);
        return _mm256_mul_ps(a, _mm256_castsi256_ps(power));
    }

    static __m256 low(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
    static __m256 high(__m256i pairs) {
        const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
        return _mm256_castsi256_ps(_mm256_and_si256(pairs, mask));
    }
    static Reg load_first(const bf16* pairs) {
        return low(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs)));
    }
    static Reg load_second(const bf16* pairs) {
        return high(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs)));
    }
    static Pairs load_pairs(const bf16* p) {
        const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        return {low(pairs), high(pairs)};
    }
    static Pairs pairs_of(const Vector& x, int half) { return {low(x.half[half]), high(x.half[half])}; }

    static void transpose16(const std::uint32_t* const rows[16], std::uint32_t* out) {
        for (int half = 0; half < 16; half += 8) {
            for (int column = 0; column < 16; column += 4) {
                transpose8x4(rows + half, column, out + column * 16 + half);
            }
        }
    }
    // Four columns of eight rows, to rows of out.
    static void transpose8x4(const std::uint32_t* const* rows, int column, std::uint32_t* out) {
        __m256 x[4];
        for (int i = 0; i < 4; ++i) {
            const auto* low = reinterpret_cast<const float*>(rows[i] + column);
            const auto* high = reinterpret_cast<const float*>(rows[i + 4] + column);
            x[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1);
        }
        const __m256 a = _mm256_unpacklo_ps(x[0], x[1]), b = _mm256_unpacklo_ps(x[2], x[3]);
        const __m256 c = _mm256_unpackhi_ps(x[0], x[1]), d = _mm256_unpackhi_ps(x[2], x[3]);
        auto* target = reinterpret_cast<float*>(out);
        _mm256_storeu_ps(target, _mm256_shuffle_ps(a, b, 0x44));
        _mm256_storeu_ps(target + 16, _mm256_shuffle_ps(a, b, 0xee));
        _mm256_storeu_ps(target + 32, _mm256_shuffle_ps(c, d, 0x44));
        _mm256_storeu_ps(target + 48, _mm256_shuffle_ps(c, d, 0xee));
    }
    static void interleave16(const bf16* a, const bf16* b, bf16* out) {
        const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a));
        const __m256i y = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b));
        const __m256i low = _mm256_unpacklo_epi16(x, y), high = _mm256_unpackhi_epi16(x, y);
        auto* target = reinterpret_cast<__m256i*>(out);
        _mm256_storeu_si256(target, _mm256_permute2x128_si256(low, high, 0x20));
        _mm256_storeu_si256(target + 1, _mm256_permute2x128_si256(low, high, 0x31));
    }
};

}  // namespace
}  // namespace ramet
