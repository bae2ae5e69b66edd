// Types and layout constants that every file of the native kernels shares.
//
// Functions in headers are static or in an unnamed namespace: the same header is compiled once per
// instruction set, and the linker must never merge an AVX-512 copy with a portable one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace ramet {

// A bfloat16 by its bits; a type of its own so that templates tell it from an integer.
struct bf16 {
    std::uint16_t bits;
};

enum class DType : int { f32 = 0, bf16 = 1, i8 = 2 };  // i8: of caches alone
enum class Activation : int { none = 0, silu = 1, gelu_tanh = 2 };

// Packed layouts (drawn in kernels/README.md): weights in panels of 32 columns, the reduced dimension
// in groups of 32, activations in tiles of 16 rows.
constexpr int kPanel = 32;
constexpr int kGroup = 32;
constexpr int kTileRows = 16;
constexpr int kHalf = 16;
// Rows of one call of a matrix microkernel.
constexpr int kBlockRows = 32;

// Keys are split at multiples of this many positions, whoever computes: it decides the bits of the result.
constexpr int kSplit = 128;
// Query rows (tokens x heads of a group) that one attention task holds; any number gives the same bits.
constexpr int kMaxTaskRows = 256;

static inline std::size_t dtype_size(DType dtype) { return dtype == DType::bf16 ? 2 : 4; }

template <class Int>
static constexpr Int ceil_div(Int a, Int b) {
    return (a + b - 1) / b;
}

template <class Int>
static constexpr Int smaller(Int a, Int b) {
    return a < b ? a : b;
}

template <class Int>
static constexpr Int larger(Int a, Int b) {
    return a < b ? b : a;
}

static inline float to_float(float x) { return x; }
static inline float to_float(std::int8_t x) { return x; }

static inline float to_float(bf16 x) {
    const std::uint32_t bits = static_cast<std::uint32_t>(x.bits) << 16;
    float result;
    std::memcpy(&result, &bits, sizeof result);
    return result;
}

// Nearest, ties to even; a NaN stays a NaN.
static inline bf16 to_bf16(float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
    }
    return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

static inline void assign(float* target, float x) { *target = x; }
static inline void assign(bf16* target, float x) { *target = to_bf16(x); }

// Offset of the 32 elements of row `row`, group `group`, in packed activations.
static inline std::size_t activation_offset(std::size_t row, std::size_t group,
                                            std::size_t num_groups) {
    return (row / kTileRows * num_groups + group) * (kTileRows * kGroup) +
           row % kTileRows * kGroup;
}

}  // namespace ramet
