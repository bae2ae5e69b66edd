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

DenseWeight::DenseWeight(Arena& arena, ThreadPool& pool, DType dtype, const void* weight,
                         const void* bias, int out_features, int in_features, bool gated)
    : PackedLinear(dtype, out_features, in_features, gated) {
    std::byte* data = allocate(arena);
    if (dtype == DType::bf16) {
        pack(pool, static_cast<const bf16*>(weight), reinterpret_cast<bf16*>(data));
    } else {
        pack(pool, static_cast<const float*>(weight), reinterpret_cast<float*>(data));
    }
    pack_bias(bias);
}

template <class T>
void DenseWeight::pack(ThreadPool& pool, const T* weight, T* data) const {
    const std::size_t panel_size = panel_bytes() / sizeof(T);
    pool.run(num_panels(),
             [&](int panel, int) { pack_panel(weight, panel, data + panel * panel_size); });
}

template <class T>
void DenseWeight::pack_panel(const T* weight, int panel, T* target) const {
    // Elements of a row that stay side by side: a pair, or one alone.
    constexpr int kRun = 4 / sizeof(T);
    const T* sources[kPanel];
    for (int column = 0; column < kPanel; ++column) {
        const std::int64_t row = source_row(panel * kPanel + column);
        sources[column] = row < 0 ? nullptr : weight + row * in_features();
    }
    // In the order of the panel: writes are dense, and a line of a source lasts for all of its elements.
    const int whole = in_features() / kRun * kRun;
    for (int k = 0; k < whole; k += kRun) {
        for (int column = 0; column < kPanel; ++column) {
            if (!sources[column]) continue;
            std::memcpy(target + panel_offset<T>(k, column), sources[column] + k, kRun * sizeof(T));
        }
    }
    for (int k = whole; k < in_features(); ++k) {
        for (int column = 0; column < kPanel; ++column) {
            if (sources[column]) target[panel_offset<T>(k, column)] = sources[column][k];
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
