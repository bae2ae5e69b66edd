// Weights in pairs of bfloat16, as float32.
#pragma once

#include "common.h"

namespace ramet {
namespace {

// From [pair of inputs][16 outputs][2] to rows of 16 outputs, one for each input, `stride` elements apart.
template <class S>
void widen_pairs(const bf16* pairs, int num_pairs, int stride, float* out) {
    for (int pair = 0; pair < num_pairs; ++pair) {
        for (int column = 0; column < kHalf; column += S::W) {
            const auto both = S::load_pairs(pairs + (pair * kHalf + column) * 2);
            S::store(out + 2 * pair * stride + column, both.low);
            S::store(out + (2 * pair + 1) * stride + column, both.high);
        }
    }
}

}  // namespace
}  // namespace ramet
