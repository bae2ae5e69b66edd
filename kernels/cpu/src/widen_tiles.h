// Tiles of keys and values (kv_tiles.h) in the element type that products take: bfloat16 from bytes, float32
// from both. All are exact.
#pragma once

#include "common.h"

namespace ramet {
namespace {

// 16 words of 4 bytes, each 4 values of a column, to 4 rows of 16 columns, row_size floats apart.
template <class S>
void widen_quads(const std::uint32_t* quads, int row_size, float* out) {
    for (int i = 0; i < kHalf; i += S::W) {
        S::store(out + i, S::template load_bytes<0>(quads + i));
        S::store(out + row_size + i, S::template load_bytes<1>(quads + i));
        S::store(out + 2 * row_size + i, S::template load_bytes<2>(quads + i));
        S::store(out + 3 * row_size + i, S::template load_bytes<3>(quads + i));
    }
}

// The same to 2 rows of 16 pairs, row_size pairs apart.
template <class S>
void widen_quads(const std::uint32_t* quads, int row_size, bf16* out) {
    for (int i = 0; i < kHalf; i += S::W) {
        S::store_exact_pairs(out + 2 * i, S::template load_bytes<0>(quads + i),
                             S::template load_bytes<1>(quads + i));
        S::store_exact_pairs(out + 2 * (row_size + i), S::template load_bytes<2>(quads + i),
                             S::template load_bytes<3>(quads + i));
    }
}

// Rows of pairs, [num_pairs][row_size][2], to twice as many rows [row_size]. At each line of what is read, a
// line of `ahead` is fetched.
template <class S>
void widen_rows(const bf16* pairs, const bf16* ahead, int num_pairs, int row_size, float* out) {
    for (int pair = 0; pair < num_pairs; ++pair) {
        for (int column = 0; column < row_size; column += S::W) {
            const int at = (pair * row_size + column) * 2;
            if (column % kHalf == 0) __builtin_prefetch(ahead + at, 0, 2);
            S::store(out + 2 * pair * row_size + column, S::load_first(pairs + at));
            S::store(out + (2 * pair + 1) * row_size + column, S::load_second(pairs + at));
        }
    }
}

}  // namespace
}  // namespace ramet
