#include "dense_weight.h"

#include "panel_layout.h"

namespace ramet {
namespace {

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
    std::byte* data = allocate(arena, num_panels() * panel_bytes());
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
    pool.run(num_panels(), [&](int panel, int) {
        const T* sources[kPanel];
        find_sources(weight, panel, sources);
        fill_panel(sources, in_features(), data + panel * panel_size);
    });
}

std::size_t DenseWeight::panel_bytes() const {
    return num_groups() * std::size_t{kGroup * kPanel} * dtype_size(dtype());
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
