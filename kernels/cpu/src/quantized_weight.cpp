#include "quantized_weight.h"

#include <stdexcept>

namespace ramet {
namespace {

// Where the quad is in the values of a group, its four bytes (or halves of bytes) of one column.
std::size_t quad_offset(int bits, int quad, int column) {
    const int quads_per_row = 8 / bits;
    const int rows = kQuads / quads_per_row;
    return ((column / kHalf * rows + quad / quads_per_row) * kHalf + column % kHalf) * kQuad;
}

void put_quad(std::byte* values, int bits, int quad, int column, std::uint32_t four) {
    std::byte* target = values + quad_offset(bits, quad, column);
    if (bits == 4 && quad % 2) {
        std::uint32_t low;
        std::memcpy(&low, target, sizeof low);
        four = low | four << 4;
    }
    std::memcpy(target, &four, sizeof four);
}

// The next four bytes, or the `count` that are left; one load as a rule.
std::uint32_t quad_of(const std::uint8_t* values, int count) {
    std::uint32_t four = 0;
    if (count >= kQuad) {
        std::memcpy(&four, values, kQuad);
    } else {
        std::memcpy(&four, values, count);
    }
    return four;
}

int value_at(const std::byte* values, int bits, int k, int column) {
    const int quad = k / kQuad;
    const auto byte =
        static_cast<std::uint8_t>(values[quad_offset(bits, quad, column) + k % kQuad]);
    if (bits == 8) return byte;
    return quad % 2 ? byte >> 4 : byte & 15;
}

}  // namespace

QuantizedWeight::QuantizedWeight(Arena& arena, ThreadPool& pool, DType dtype, int bits,
                                 const Source& source, int out_features, int in_features, bool gated)
    : PackedLinear(dtype, out_features, in_features, gated),
      bits_(bits),
      has_minimums_(source.minimums != nullptr) {
    if (bits != 8 && bits != 4) throw std::invalid_argument("a weight has 8 or 4 bits");
    std::byte* data = allocate(arena, num_panels() * panel_bytes());
    pool.run(num_panels(), [&](int panel, int) { pack_panel(source, panel, data); });
    pack_bias(source.bias);
}

void QuantizedWeight::pack_panel(const Source& source, int panel, std::byte* data) const {
    std::int64_t rows[kPanel];
    for (int column = 0; column < kPanel; ++column) {
        rows[column] = source_row(panel * kPanel + column);
    }
    // In the order of the panel: a group stays in the cache while all of its columns are put there.
    for (int group = 0; group < num_groups(); ++group) {
        std::byte* target = data + panel * panel_bytes() + group * group_bytes();
        auto* scales = reinterpret_cast<f16*>(target + quantized_value_bytes(bits_));
        const int count = smaller(kGroup, in_features() - group * kGroup);
        for (int column = 0; column < kPanel; ++column) {
            const std::int64_t row = rows[column];
            if (row < 0) continue;
            const std::uint8_t* values = source.values + row * in_features() + group * kGroup;
            for (int k = 0; k < count; k += kQuad) {
                put_quad(target, bits_, k / kQuad, column, quad_of(values + k, count - k));
            }
            scales[column] = source.scales[row * num_groups() + group];
            if (has_minimums_) {
                scales[kPanel + column] = source.minimums[row * num_groups() + group];
            }
        }
    }
}

void QuantizedWeight::unpack_row(std::int64_t row, void* out) const {
    if (dtype() == DType::bf16) {
        unpack(place_of(row), static_cast<bf16*>(out));
    } else {
        unpack(place_of(row), static_cast<float*>(out));
    }
}

template <class T>
void QuantizedWeight::unpack(Place place, T* out) const {
    const std::byte* values = data() + place.panel * panel_bytes();
    const auto implied = static_cast<float>(1 << (bits_ - 1));
    for (int k = 0; k < in_features(); ++k) {
        if (k > 0 && k % kGroup == 0) values += group_bytes();
        const auto* scales = reinterpret_cast<const f16*>(values + quantized_value_bytes(bits_));
        const float scale = to_float(scales[place.column]);
        const auto value = static_cast<float>(value_at(values, bits_, k % kGroup, place.column));
        const float minimum =
            has_minimums_ ? to_float(scales[kPanel + place.column]) : -implied * scale;
        assign(out + k, scale * value + minimum);
    }
}

}  // namespace ramet
