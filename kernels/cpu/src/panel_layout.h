// Where the elements of a dense panel lie:
//
//   bf16   a group is [2 halves][16 pairs][16 columns][2]   the tiles of AMX, and vectors of pairs
//   f32    a group is [32][32 columns]
#pragma once

#include "common.h"

namespace ramet {
namespace {

// Offset of (k, column) in a panel.
template <class T>
std::size_t panel_offset(int k, int column) {
    if constexpr (sizeof(T) == sizeof(float)) {
        return static_cast<std::size_t>(k) * kPanel + column;
    } else {
        const int group = k / kGroup, pair = k % kGroup / 2;
        return static_cast<std::size_t>(group) * kGroup * kPanel + column / kHalf * (kGroup * kHalf) +
               pair * kPanel + column % kHalf * 2 + k % 2;
    }
}

// The panel whose columns are num_inputs elements from each of sources on; null: left as it is. In the order
// of the panel: writes are dense, and a line of a source lasts for all of its elements.
template <class T>
void fill_panel(const T* const (&sources)[kPanel], int num_inputs, T* target) {
    // Elements of a row that stay side by side: a pair, or one alone.
    constexpr int kRun = 4 / sizeof(T);
    const int whole = num_inputs / kRun * kRun;
    for (int k = 0; k < whole; k += kRun) {
        for (int column = 0; column < kPanel; ++column) {
            if (!sources[column]) continue;
            std::memcpy(target + panel_offset<T>(k, column), sources[column] + k, kRun * sizeof(T));
        }
    }
    for (int k = whole; k < num_inputs; ++k) {
        for (int column = 0; column < kPanel; ++column) {
            if (sources[column]) target[panel_offset<T>(k, column)] = sources[column][k];
        }
    }
}

}  // namespace
}  // namespace ramet
