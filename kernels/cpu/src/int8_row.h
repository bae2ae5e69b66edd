// Floats as a scale times integers from -127 to 127.
#pragma once

#include "common.h"

namespace ramet {

// A row of an 8-bit cache: head_dim values, then the bytes of a float that each is multiplied by.
constexpr int kScaleBytes = sizeof(float);
// Of heads in an 8-bit cache.
constexpr int kMaxInt8HeadDim = 1024;

// Elements of a row of a cache.
static inline int row_size(const void*, int head_dim) { return head_dim; }
static inline int row_size(const std::int8_t*, int head_dim) { return head_dim + kScaleBytes; }

struct Int8Scale {
    float scale, inverse;
};

// The scale that makes 127 of the largest magnitude; where something is infinite or NaN, so is the scale.
static inline Int8Scale int8_scale(const float* x, int count) {
    // Below this all count as zero: the inverse would not be finite.
    constexpr float kTiny = 1e-30f;
    // The magnitude of a float rises with its bits, and a NaN is above all, so it is not lost.
    std::uint32_t top_bits = 0;
    for (int i = 0; i < count; ++i) {
        std::uint32_t bits;
        std::memcpy(&bits, x + i, sizeof bits);
        top_bits = larger(top_bits, bits & 0x7fffffffu);
    }
    float top;
    std::memcpy(&top, &top_bits, sizeof top);
    return {top / 127.0f, top > kTiny ? 127.0f / top : 0.0f};
}

// Nearest, ties to even, of -127 ... 127.
static inline std::int8_t nearest_int8(float x) {
    // Adding 1.5 * 2^23 leaves the nearest integer in the low bits.
    const float shifted = x + 12582912.0f;
    std::int32_t bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    return static_cast<std::int8_t>(bits - 0x4b400000);
}

static inline void to_int8_row(const float* head, int head_dim, std::int8_t* row) {
    const Int8Scale by = int8_scale(head, head_dim);
    for (int d = 0; d < head_dim; ++d) row[d] = nearest_int8(head[d] * by.inverse);
    std::memcpy(row + head_dim, &by.scale, kScaleBytes);
}

static inline float int8_row_scale(const std::int8_t* row, int head_dim) {
    float scale;
    std::memcpy(&scale, row + head_dim, kScaleBytes);
    return scale;
}

}  // namespace ramet
