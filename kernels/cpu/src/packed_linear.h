// A weight in panels: what a linear layer streams, and where the embedding finds its rows.
//
//   bf16   [panels][groups][2 halves][16 pairs][16 columns][2]   the tiles of AMX, and vectors of pairs
//   f32    [panels][groups][32][32 columns]
//
// A panel is 32 columns of the result (rows of the weight), a group 32 of the reduced dimension; both
// are padded with zeros. A gated weight has in each panel 16 gate columns and the 16 up columns that they
// go with.
#pragma once

#include <vector>

#include "common.h"
#include "memory.h"

namespace ramet {

class PackedLinear {
  public:
    // weight: [out_features, in_features], contiguous; bias: [out_features] of the same dtype, or null.
    // gated: the first half of the rows are gates. Throws std::invalid_argument.
    PackedLinear(Arena& arena, DType dtype, const void* weight, const void* bias, int out_features,
                 int in_features, bool gated);

    // out: row `row` of the weight, as it was.
    void unpack_row(std::int64_t row, void* out) const;

    DType dtype() const { return dtype_; }
    int out_features() const { return out_features_; }
    int in_features() const { return in_features_; }
    bool gated() const { return gated_; }
    int num_groups() const { return ceil_div(in_features_, kGroup); }
    int num_panels() const;
    const void* data() const { return piece_.data; }
    const float* bias() const { return bias_.empty() ? nullptr : bias_.data(); }
    std::size_t num_bytes() const;

  private:
    template <class T>
    void pack(const T* weight, const T* bias);
    // Row of the weight in a column of the packed panels, or -1 for padding.
    int source_row(int packed_column) const;

    DType dtype_;
    int out_features_, in_features_;
    bool gated_;
    Arena::Piece piece_;
    std::vector<float> bias_;
};

}  // namespace ramet
