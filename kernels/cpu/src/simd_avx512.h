// Vectors of sixteen floats with AVX-512 (F, DQ, BW, VL), and with BF16 where the compiler is told so.
#pragma once

#include <immintrin.h>

#include "common.h"

namespace ramet {
namespace {

struct Avx512Simd {
    static constexpr int W = 16;
    using Reg = __m512;
    using Words = __m512i;

    static Reg zero() { return _mm512_setzero_ps(); }
    static Reg set1(float x) { return _mm512_set1_ps(x); }
    static Reg load(const float* p) { return _mm512_loadu_ps(p); }
    static Reg load(const bf16* p) {
        return widened(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }
    static Reg load(const std::int8_t* p) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
    }
    template <int J>
    static Reg load_bytes(const std::uint32_t* words) {
        const Words shifted = _mm512_slli_epi32(_mm512_loadu_si512(words), 24 - 8 * J);
        return _mm512_cvtepi32_ps(_mm512_srai_epi32(shifted, 24));
    }
    static void store(float* p, Reg a) { _mm512_storeu_ps(p, a); }
    static void store_exact_pairs(bf16* p, Reg first, Reg second) {
        const Words low = _mm512_srli_epi32(_mm512_castps_si512(first), 16);
        _mm512_storeu_si512(p, _mm512_or_si512(low, _mm512_castps_si512(second)));
    }
    static Reg widened(__m256i half) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
    }
    static __m256i nearest(Reg a) {
#if defined(__AVX512BF16__)
        return (__m256i)_mm512_cvtneps_pbh(a);
#else
        const Words bits = _mm512_castps_si512(a);
        const Words odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
        const Words bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
        const Words rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, bias), 16);
        const Words nan = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
        const __mmask16 is_nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
        return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, is_nan, nan));
#endif
    }
    static void store(bf16* p, Reg a) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), nearest(a));
    }
    // Two vectors, one after the other.
    static void store_two(float* p, Reg a, Reg b) {
        store(p, a);
        store(p + W, b);
    }
    static void store_two(bf16* p, Reg a, Reg b) {
#if defined(__AVX512BF16__)
        _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(b, a));
#else
        store(p, a);
        store(p + W, b);
#endif
    }
    static Reg rounded_to_bf16(Reg a) { return widened(nearest(a)); }
    static Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
    static Reg sub(Reg a, Reg b) { return _mm512_sub_ps(a, b); }
    static Reg mul(Reg a, Reg b) { return _mm512_mul_ps(a, b); }
    static Reg div(Reg a, Reg b) { return _mm512_div_ps(a, b); }
    // One step of Newton's method from 14 bits; where they are zero, of infinity, it stays so.
    static Reg reciprocal(Reg a) {
        const Reg first = _mm512_rcp14_ps(a);
        const Reg error = _mm512_fnmadd_ps(a, first, set1(1.0f));
        const __mmask16 not_zero = _mm512_cmp_ps_mask(first, zero(), _CMP_NEQ_UQ);
        return _mm512_mask_fmadd_ps(first, not_zero, error, first);
    }
    static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
    static Reg max(Reg a, Reg b) { return _mm512_max_ps(a, b); }
    static Reg min(Reg a, Reg b) { return _mm512_min_ps(a, b); }
    static Reg zero_below(Reg a, Reg floor) {
        return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, floor, _CMP_NLT_UQ), a);
    }
    static float reduce_add(Reg a) { return reduce(a, add); }
    static float reduce_max(Reg a) { return reduce(a, max); }
    // Halves, quarters, pairs: spelled out, as a compiler's own reduction may have any order.
    template <class F>
    static float reduce(Reg a, const F& f) {
        const Reg halves = f(a, _mm512_shuffle_f32x4(a, a, 0x4e));
        const Reg quarters = f(halves, _mm512_shuffle_f32x4(halves, halves, 0xb1));
        const Reg pairs = f(quarters, _mm512_permute_ps(quarters, 0x4e));
        return _mm512_cvtss_f32(f(pairs, _mm512_permute_ps(pairs, 0xb1)));
    }
    // Of four vectors at once, each in the order of the above.
    static void reduce_add(const Reg (&a)[4], float* out) { reduce(a, add, out); }
    static void reduce_max(const Reg (&a)[4], float* out) { reduce(a, max, out); }
    template <class F>
    static void reduce(const Reg (&a)[4], const F& f, float* out) {
        const Reg ab = f(_mm512_shuffle_f32x4(a[0], a[1], 0x44), _mm512_shuffle_f32x4(a[0], a[1], 0xee));
        const Reg cd = f(_mm512_shuffle_f32x4(a[2], a[3], 0x44), _mm512_shuffle_f32x4(a[2], a[3], 0xee));
        const Reg quarters = f(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
        const Reg pairs = f(quarters, _mm512_permute_ps(quarters, 0x4e));
        const Reg all = f(pairs, _mm512_permute_ps(pairs, 0xb1));
        const Words first = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
        _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(first, all)));
    }
    static Reg round(Reg x) {
        return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
    static Reg scale_by_power(Reg a, Reg n) {
        const __mmask16 normal = _mm512_cmp_ps_mask(n, set1(-126.0f), _CMP_NLT_UQ);
        return _mm512_maskz_scalef_ps(normal, a, n);
    }
    static Reg fraction(Reg x) {
        return _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    }
    static Reg scale_by_floor(Reg a, Reg x) { return _mm512_scalef_ps(a, x); }

    // The first of 16 pairs, and the second.
    static Reg load_first(const bf16* pairs) { return first_of(_mm512_loadu_si512(pairs)); }
    static Reg load_second(const bf16* pairs) { return second_of(_mm512_loadu_si512(pairs)); }
    static Reg first_of(Words pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
    static Reg second_of(Words pairs) {
        const Words mask = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
        return _mm512_castsi512_ps(_mm512_and_si512(pairs, mask));
    }

#if defined(__AVX512BF16__)
    static constexpr bool kMultipliesPairs = true;
    using Pairs = Words;
    static Pairs load_pairs(const bf16* p) { return _mm512_loadu_si512(p); }
    static Pairs set1_pair(const bf16* p) {
        int bits;
        std::memcpy(&bits, p, sizeof bits);
        return _mm512_set1_epi32(bits);
    }
    static Reg dot(Reg sum, Pairs a, Pairs b) {
        return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
    }
#else
    static constexpr bool kMultipliesPairs = false;
    struct Pairs {
        __m512 low, high;
    };
    static Pairs load_pairs(const bf16* p) { return {load_first(p), load_second(p)}; }
#endif

    // See compact_group.h.
    static constexpr bool kExpands = true;
    using Listed = Words;
    using Vector = Words;
    static Listed load_listed(const std::uint8_t* bytes) {
        return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
    }
    static void expand_part(const std::uint8_t* part, Listed listed, Vector (&out)[4]) {
        const Words half = _mm512_set1_epi8(15);
        const Words codes = _mm512_load_si512(part);
        const Words second = _mm512_and_si512(_mm512_srli_epi16(codes, 4), half);
        const Words upper[2] = {_mm512_shuffle_epi8(listed, _mm512_and_si512(codes, half)),
                                _mm512_shuffle_epi8(listed, second)};
        for (int i = 0; i < 2; ++i) {
            const Words lower = _mm512_load_si512(part + 64 * (1 + i));
            out[2 * i] = _mm512_unpacklo_epi8(lower, upper[i]);
            out[2 * i + 1] = _mm512_unpackhi_epi8(lower, upper[i]);
        }
    }
    static void store_vector(bf16* p, Vector x) { _mm512_store_si512(p, x); }
#if defined(__AVX512BF16__)
    static Pairs pairs_of(Vector x, int) { return x; }
#else
    static Pairs pairs_of(Vector x, int) { return {first_of(x), second_of(x)}; }
#endif

    // Four rounds, each exchanging halves at half the distance of the one before.
    static void transpose16(const std::uint32_t* const rows[16], std::uint32_t* out) {
        Words a[16], b[16];
        for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_si512(rows[i]);
        for (int i = 0; i < 16; i += 2) {
            b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
            b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
        }
        for (int i = 0; i < 16; i += 4) {
            a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
            a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
            a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
            a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
        }
        for (int i = 0; i < 4; ++i) {
            b[i] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88);
            b[i + 4] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
            b[i + 8] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
            b[i + 12] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
        }
        for (int i = 0; i < 4; ++i) {
            std::uint32_t* target = out + i * 16;
            _mm512_storeu_si512(target, _mm512_shuffle_i32x4(b[i], b[i + 8], 0x88));
            _mm512_storeu_si512(target + 64, _mm512_shuffle_i32x4(b[i + 4], b[i + 12], 0x88));
            _mm512_storeu_si512(target + 128, _mm512_shuffle_i32x4(b[i], b[i + 8], 0xdd));
            _mm512_storeu_si512(target + 192, _mm512_shuffle_i32x4(b[i + 4], b[i + 12], 0xdd));
        }
    }
    static void interleave16(const bf16* a, const bf16* b, bf16* out) {
        const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a));
        const __m256i y = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b));
        const Words low = _mm512_cvtepu16_epi32(x);
        const Words high = _mm512_slli_epi32(_mm512_cvtepu16_epi32(y), 16);
        _mm512_storeu_si512(out, _mm512_or_si512(low, high));
    }
};

}  // namespace
}  // namespace ramet
