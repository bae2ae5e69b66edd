// A weight in panels: what a linear layer streams, and where the embedding finds its rows.
//
// A panel is 32 columns of the result (rows of the weight), a group 32 of the reduced dimension; both
// are padded with zeros. A gated weight has in each panel 16 gate columns and the 16 up columns that they
// go with. What a group holds is for dense_weight.h, compact_weight.h and quantized_weight.h to say.
#pragma once

#include <vector>

#include "common.h"
#include "memory.h"

namespace ramet {

class PackedLinear {
  public:
    virtual ~PackedLinear() = default;

    // out: row `row` of the weight, of dtype().
    virtual void unpack_row(std::int64_t row, void* out) const = 0;
    // Of activations and embedding rows.
    DType dtype() const { return dtype_; }
    int out_features() const { return out_features_; }
    int in_features() const { return in_features_; }
    bool gated() const { return gated_; }
    int num_groups() const { return ceil_div(in_features_, kGroup); }
    int num_panels() const;
    const std::byte* data() const { return piece_.data; }
    // Where each panel begins and the last one ends, in bytes from data(); null: all are of one length.
    virtual const std::size_t* panel_offsets() const { return nullptr; }
    const float* bias() const { return bias_.empty() ? nullptr : bias_.data(); }
    std::size_t num_bytes() const { return num_bytes_; }

  protected:
    struct Place {
        int panel, column;
    };

    // gated: the first half of the rows are gates. Throws std::invalid_argument.
    PackedLinear(DType dtype, int out_features, int in_features, bool gated);

    // Zeroed memory for the panels.
    std::byte* allocate(Arena& arena, std::size_t num_bytes);
    // bias: [out_features] of dtype, or null.
    void pack_bias(const void* bias);

    // Row of the weight in a column of the packed panels, or -1 for padding.
    int source_row(int packed_column) const;
    // The rows of a matrix like this one that are the columns of a panel; null for padding.
    template <class T>
    void find_sources(const T* matrix, int panel, const T* (&sources)[kPanel]) const {
        for (int column = 0; column < kPanel; ++column) {
            const std::int64_t row = source_row(panel * kPanel + column);
            sources[column] = row < 0 ? nullptr : matrix + row * in_features();
        }
    }
    Place place_of(std::int64_t row) const;

  private:
    DType dtype_;
    int out_features_, in_features_;
    bool gated_;
    Arena::Piece piece_;
    std::size_t num_bytes_ = 0;
    std::vector<float> bias_;
};

}  // namespace ramet
