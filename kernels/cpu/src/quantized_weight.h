// A packed weight of 8 or 4 bits an element, in groups of 32 with a scale and perhaps a minimum:
//
//   w = scale * value + minimum         without minimums: w = scale * (value - 2^(bits - 1))
//
//   8 bits   a group is [2 halves][8 quads][16 columns][4], then float16 scales[32], then minimums[32]
//   4 bits   a group is [2 halves][4 pairs of quads][16 columns][4], the first quad of a pair in the low
//            halves of its bytes, the second in the high ones; then as above
//
// A quad is four elements of the reduced dimension: what an integer dot product adds to one sum.
#pragma once

#include "packed_linear.h"
#include "threads.h"

namespace ramet {

constexpr int kQuad = 4;
constexpr int kQuads = kGroup / kQuad;

// IEEE half precision by its bits.
struct f16 {
    std::uint16_t bits;
};

static inline float to_float(f16 x) {
    const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000u) << 16;
    const std::uint32_t magnitude = x.bits & 0x7fffu;
    if (magnitude < 0x400u) {  // a multiple of 2^-24
        const float value = static_cast<float>(magnitude) * (1.0f / 16777216.0f);
        return sign ? -value : value;
    }
    const std::uint32_t exponent = magnitude >= 0x7c00u ? 0x38000000u * 2 : 0x38000000u;
    const std::uint32_t bits = sign | ((magnitude << 13) + exponent);
    float result;
    std::memcpy(&result, &bits, sizeof result);
    return result;
}

static inline constexpr std::size_t quantized_value_bytes(int bits) {
    return kGroup * kPanel * bits / 8;
}

class QuantizedWeight : public PackedLinear {
  public:
    struct Source {
        const std::uint8_t* values;  // [out_features, in_features], one a byte
        const f16* scales;           // [out_features, num_groups]
        const f16* minimums;         // the same, or null
        const void* bias;            // [out_features] of dtype, or null
    };

    // bits: 8 or 4. Throws std::invalid_argument.
    QuantizedWeight(Arena& arena, ThreadPool& pool, DType dtype, int bits, const Source& source,
                    int out_features, int in_features, bool gated);

    void unpack_row(std::int64_t row, void* out) const override;
    std::size_t group_bytes() const {
        return quantized_value_bytes(bits_) + (has_minimums_ ? 2 : 1) * kPanel * sizeof(f16);
    }

    int bits() const { return bits_; }
    bool has_minimums() const { return has_minimums_; }

  private:
    std::size_t panel_bytes() const { return num_groups() * group_bytes(); }
    void pack_panel(const Source& source, int panel, std::byte* data) const;
    template <class T>
    void unpack(Place place, T* out) const;

    int bits_;
    bool has_minimums_;
};

}  // namespace ramet
