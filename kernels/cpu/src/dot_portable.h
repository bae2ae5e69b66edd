// Integer products of bytes in plain C++, four columns at a time.
#pragma once

#include "quantized_weight.h"
#include "simd_portable.h"

namespace ramet {
namespace {

struct PortableDot {
    static constexpr bool kHasTiles = false;
    struct Integers {
        std::int32_t lane[PortableSimd::W];
    };

    // sums[r]: of each column, 32 values times the 32 of row r. values: quads of W columns, 64 bytes
    // from one to the next; with 4 bits two quads in one (quantized_weight.h).
    template <int kBits, int R>
    static void group(const std::uint8_t* values, const std::int8_t* rows, Integers* sums) {
        for (int r = 0; r < R; ++r) {
            for (int c = 0; c < PortableSimd::W; ++c) {
                sums[r].lane[c] = column<kBits>(values + c * kQuad, rows + r * kGroup);
            }
        }
    }

    // Integers less a number, as floats.
    static PortableSimd::Reg to_floats(const Integers& sums, std::int32_t less) {
        return PortableSimd::make([&](int i) { return static_cast<float>(sums.lane[i] - less); });
    }

    static PortableSimd::Reg load_halves(const f16* p) {
        return PortableSimd::make([&](int i) { return to_float(p[i]); });
    }

  private:
    static constexpr int kStride = kHalf * kQuad;

    template <int kBits>
    static std::int32_t column(const std::uint8_t* values, const std::int8_t* row) {
        std::int32_t sum = 0;
        for (int quad = 0; quad < kQuads; ++quad) {
            for (int k = 0; k < kQuad; ++k) {
                const int value = kBits == 8 ? values[quad * kStride + k]
                                             : values[quad / 2 * kStride + k] >> quad % 2 * 4 & 15;
                sum += value * row[quad * kQuad + k];
            }
        }
        return sum;
    }
};

}  // namespace
}  // namespace ramet
