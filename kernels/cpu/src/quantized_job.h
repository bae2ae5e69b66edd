// Linear layers on quantized weights as jobs: activations to 8 bits, then the products.
#pragma once

#include "kernel_table.h"

namespace ramet {

// Packed activations: 16 rows of one group of 32. A row's values are its scale times integers from -127
// to 127. Rows of padding hold anything.
struct QuantizedTile {
    std::int8_t values[kTileRows][kGroup];
    float scales[kTileRows];
    std::int32_t sums[kTileRows];    // of a row's values
    float scaled_sums[kTileRows];    // the same times its scale
};

struct QuantizeJob {
    DType dtype;
    const void* x;  // [num_rows, num_columns]
    std::int64_t x_stride;
    int num_columns;
    QuantizedTile* tiles;  // [row tiles][groups]
};

struct QuantizedJob {
    LinearJob linear;  // its activations are tiles, its weight is in the groups of quantized_weight.h
    int bits;
    bool has_minimums;
    std::size_t group_bytes;
};

}  // namespace ramet
