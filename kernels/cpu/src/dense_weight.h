// A packed weight as it came:
//
//   bf16   a group is [2 halves][16 pairs][16 columns][2]   the tiles of AMX, and vectors of pairs
//   f32    a group is [32][32 columns]
#pragma once

#include "packed_linear.h"
#include "threads.h"

namespace ramet {

class DenseWeight : public PackedLinear {
  public:
    // weight: [out_features, in_features], contiguous; bias: [out_features] of the same dtype, or null.
    // Throws std::invalid_argument.
    DenseWeight(Arena& arena, ThreadPool& pool, DType dtype, const void* weight, const void* bias,
                int out_features, int in_features, bool gated);

    void unpack_row(std::int64_t row, void* out) const override;
    std::size_t group_bytes() const override { return kGroup * kPanel * dtype_size(dtype()); }

  private:
    template <class T>
    void pack(ThreadPool& pool, const T* weight, T* data) const;
    template <class T>
    void pack_panel(const T* weight, int panel, T* target) const;
};

}  // namespace ramet
