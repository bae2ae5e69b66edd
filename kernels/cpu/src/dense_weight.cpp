#include "dense_weight.h"

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
void copy_row(const std::byte* panel, int column, int n, void* out) {
    for (int k = 0; k < n; ++k) {
        static_cast<T*>(out)[k] = reinterpret_cast<const T*>(panel)[panel_offset<T>(k, column)];
    }
}

}  // namespace

DenseWeight::DenseWeight(Arena& arena, DType dtype, const void* weight, const void* bias,
                         int out_features, int in_features, bool gated)
    : PackedLinear(dtype, out_features, in_features, gated) {
    std::byte* data = allocate(arena);
    if (dtype == DType::bf16) {
        pack(static_cast<const bf16*>(weight), reinterpret_cast<bf16*>(data));
    } else {
        pack(static_cast<const float*>(weight), reinterpret_cast<float*>(data));
    }
    pack_bias(bias);
}

template <class T>
void DenseWeight::pack(const T* weight, T* data) const {
    const std::size_t panel_size = panel_bytes() / sizeof(T);
    for (int column = 0; column < num_panels() * kPanel; ++column) {
        const int row = source_row(column);
        if (row < 0) continue;
        T* panel = data + column / kPanel * panel_size;
        const T* source = weight + static_cast<std::size_t>(row) * in_features();
        for (int k = 0; k < in_features(); ++k) {
            panel[panel_offset<T>(k, column % kPanel)] = source[k];
        }
    }
}

void DenseWeight::unpack_row(std::int64_t row, void* out) const {
    const Place place = place_of(row);
    const std::byte* panel = data() + place.panel * panel_bytes();
    if (dtype() == DType::bf16) {
        copy_row<bf16>(panel, place.column, in_features(), out);
    } else {
        copy_row<float>(panel, place.column, in_features(), out);
    }
}

}  // namespace ramet
