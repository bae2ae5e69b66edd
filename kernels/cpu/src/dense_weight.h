// A packed weight as it came; see panel_layout.h.
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

  private:
    template <class T>
    void pack(ThreadPool& pool, const T* weight, T* data) const;
    std::size_t panel_bytes() const;
};

}  // namespace ramet
