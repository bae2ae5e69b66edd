#include "packed_linear.h"

#include <stdexcept>

namespace ramet {
namespace {

// Offset of (k, column) in a panel.
template <class T>
std::size_t panel_offset(int k, int column);

template <>
std::size_t panel_offset<bf16>(int k, int column) {
    const int group = k / kGroup, pair = k % kGroup / 2;
    return static_cast<std::size_t>(group) * kGroup * kPanel + column / kHalf * (kGroup * kHalf) +
           pair * kPanel + column % kHalf * 2 + k % 2;
}

template <>
std::size_t panel_offset<float>(int k, int column) {
    return static_cast<std::size_t>(k) * kPanel + column;
}

template <class T>
void copy_row(const T* panel, int column, int n, T* out) {
    for (int k = 0; k < n; ++k) out[k] = panel[panel_offset<T>(k, column)];
}

}  // namespace

PackedLinear::PackedLinear(Arena& arena, DType dtype, const void* weight, const void* bias,
                           int out_features, int in_features, bool gated)
    : dtype_(dtype), out_features_(out_features), in_features_(in_features), gated_(gated) {
    if (out_features < 1 || in_features < 1) {
        throw std::invalid_argument("a weight must have at least one row and one column");
    }
    if (gated && out_features % 2) {
        throw std::invalid_argument("a gated weight must have an even number of rows");
    }
    piece_ = arena.allocate(num_bytes());
    if (dtype == DType::bf16) {
        pack(static_cast<const bf16*>(weight), static_cast<const bf16*>(bias));
    } else {
        pack(static_cast<const float*>(weight), static_cast<const float*>(bias));
    }
}

int PackedLinear::num_panels() const {
    return gated_ ? ceil_div(out_features_ / 2, kHalf) : ceil_div(out_features_, kPanel);
}

std::size_t PackedLinear::num_bytes() const {
    return static_cast<std::size_t>(num_panels()) * num_groups() * kGroup * kPanel *
           dtype_size(dtype_);
}

int PackedLinear::source_row(int packed_column) const {
    if (!gated_) return packed_column < out_features_ ? packed_column : -1;
    const int half_rows = out_features_ / 2;
    const int row = packed_column / kPanel * kHalf + packed_column % kHalf;
    if (row >= half_rows) return -1;
    return packed_column % kPanel < kHalf ? row : row + half_rows;
}

template <class T>
void PackedLinear::pack(const T* weight, const T* bias) {
    auto* data = reinterpret_cast<T*>(piece_.data);
    const std::size_t panel_size = static_cast<std::size_t>(num_groups()) * kGroup * kPanel;
    const int num_columns = num_panels() * kPanel;
    if (bias) bias_.assign(num_columns, 0.0f);
    for (int column = 0; column < num_columns; ++column) {
        const int row = source_row(column);
        if (row < 0) continue;
        T* panel = data + column / kPanel * panel_size;
        const T* source = weight + static_cast<std::size_t>(row) * in_features_;
        for (int k = 0; k < in_features_; ++k) {
            panel[panel_offset<T>(k, column % kPanel)] = source[k];
        }
        if (bias) bias_[column] = to_float(bias[row]);
    }
}

void PackedLinear::unpack_row(std::int64_t row, void* out) const {
    std::int64_t column = row;
    if (gated_) {
        const std::int64_t half_rows = out_features_ / 2, within = row % half_rows;
        column = within / kHalf * kPanel + within % kHalf + (row < half_rows ? 0 : kHalf);
    }
    const std::size_t offset =
        static_cast<std::size_t>(column / kPanel) * num_groups() * kGroup * kPanel;
    const int within_panel = static_cast<int>(column % kPanel);
    if (dtype_ == DType::bf16) {
        copy_row(reinterpret_cast<const bf16*>(piece_.data) + offset, within_panel, in_features_,
                 static_cast<bf16*>(out));
    } else {
        copy_row(reinterpret_cast<const float*>(piece_.data) + offset, within_panel, in_features_,
                 static_cast<float*>(out));
    }
}

}  // namespace ramet
