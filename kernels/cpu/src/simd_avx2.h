// Vectors of eight floats with AVX2 and FMA.
#pragma once

#include <immintrin.h>

#include "common.h"

namespace ramet {
namespace {

struct Avx2Simd {
    static constexpr int W = 8;
    using Reg = __m256;
    struct Pairs {
        __m256 low, high;
    };

    static Reg zero() { return _mm256_setzero_ps(); }
    static Reg set1(float x) { return _mm256_set1_ps(x); }
    static Reg load(const float* p) { return _mm256_loadu_ps(p); }
    static Reg load(const bf16* p) {
        const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
    }
    static void store(float* p, Reg a) { _mm256_storeu_ps(p, a); }
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
    static Reg fraction(Reg x) {
        const __m256 bounded = _mm256_max_ps(set1(-200.0f), x);
        return _mm256_sub_ps(bounded, _mm256_floor_ps(bounded));
    }
    static Reg scale_by_floor(Reg a, Reg x) {
        return scale_by_power(a, _mm256_floor_ps(_mm256_max_ps(set1(-200.0f), x)));
    }

    static __m256 low(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
    static __m256 high(__m256i pairs) {
        const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
        return _mm256_castsi256_ps(_mm256_and_si256(pairs, mask));
    }
    static Pairs load_pairs(const bf16* p) {
        const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        return {low(pairs), high(pairs)};
    }
    static Pairs set1_pair(const bf16* p) {
        int bits;
        std::memcpy(&bits, p, sizeof bits);
        const __m256i pairs = _mm256_set1_epi32(bits);
        return {low(pairs), high(pairs)};
    }
    static Reg dot(Reg sum, Pairs a, Pairs b) { return fma(a.high, b.high, fma(a.low, b.low, sum)); }

    static void transpose16(const std::uint32_t* const rows[16], std::uint32_t* out,
                            std::size_t stride) {
        for (int c = 0; c < 16; ++c) {
            for (int r = 0; r < 16; ++r) out[c * stride + r] = rows[r][c];
        }
    }
    static void interleave16(const bf16* a, const bf16* b, bf16* out) {
        const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a));
        const __m256i y = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b));
        const __m256i low = _mm256_unpacklo_epi16(x, y), high = _mm256_unpackhi_epi16(x, y);
        auto* target = reinterpret_cast<__m256i*>(out);
        _mm256_storeu_si256(target, _mm256_permute2x128_si256(low, high, 0x20));
        _mm256_storeu_si256(target + 1, _mm256_permute2x128_si256(low, high, 0x31));
    }
    static void store_pairs(bf16* p, Reg even, Reg odd) {
        bf16 a[W], b[W];
        store(a, even);
        store(b, odd);
        const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a));
        const __m128i y = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b));
        auto* target = reinterpret_cast<__m128i*>(p);
        _mm_storeu_si128(target, _mm_unpacklo_epi16(x, y));
        _mm_storeu_si128(target + 1, _mm_unpackhi_epi16(x, y));
    }
};

}  // namespace
}  // namespace ramet
