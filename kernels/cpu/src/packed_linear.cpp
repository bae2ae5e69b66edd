#include "packed_linear.h"

#include <stdexcept>

namespace ramet {

PackedLinear::PackedLinear(DType dtype, int out_features, int in_features, bool gated)
    : dtype_(dtype), out_features_(out_features), in_features_(in_features), gated_(gated) {
    if (out_features < 1 || in_features < 1) {
        throw std::invalid_argument("a weight must have at least one row and one column");
    }
    if (gated && out_features % 2) {
        throw std::invalid_argument("a gated weight must have an even number of rows");
    }
}

std::byte* PackedLinear::allocate(Arena& arena, std::size_t num_bytes) {
    piece_ = arena.allocate(num_bytes);
    num_bytes_ = num_bytes;
    return piece_.data;
}

void PackedLinear::pack_bias(const void* bias) {
    if (!bias) return;
    bias_.assign(num_panels() * kPanel, 0.0f);
    for (int column = 0; column < num_panels() * kPanel; ++column) {
        const int row = source_row(column);
        if (row < 0) continue;
        bias_[column] = dtype_ == DType::bf16 ? to_float(static_cast<const bf16*>(bias)[row])
                                              : static_cast<const float*>(bias)[row];
    }
}

int PackedLinear::num_panels() const {
    return gated_ ? ceil_div(out_features_ / 2, kHalf) : ceil_div(out_features_, kPanel);
}

int PackedLinear::source_row(int packed_column) const {
    if (!gated_) return packed_column < out_features_ ? packed_column : -1;
    const int half_rows = out_features_ / 2;
    const int row = packed_column / kPanel * kHalf + packed_column % kHalf;
    if (row >= half_rows) return -1;
    return packed_column % kPanel < kHalf ? row : row + half_rows;
}

PackedLinear::Place PackedLinear::place_of(std::int64_t row) const {
    std::int64_t column = row;
    if (gated_) {
        const std::int64_t half_rows = out_features_ / 2, within = row % half_rows;
        column = within / kHalf * kPanel + within % kHalf + (row < half_rows ? 0 : kHalf);
    }
    return {static_cast<int>(column / kPanel), static_cast<int>(column % kPanel)};
}

}  // namespace ramet
