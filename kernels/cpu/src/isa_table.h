// The table of one instruction set: the same ranges over its vectors, its products and its attention's.
#pragma once

#include "attention_fold.h"
#include "attention_range.h"
#include "draw_range.h"
#include "elementwise_range.h"
#include "linear_range.h"
#include "quantized_range.h"

namespace ramet {
namespace {  // each isa_*.cpp has its own: code for one instruction set must not serve another

template <class Simd, class Matmul, class Dot, class Products>
constexpr KernelTable kKernelTable = {
    Simd::kExpands,
    LinearRange<Simd, Matmul>::activation_size,
    LinearRange<Simd, Matmul>::pack,
    LinearRange<Simd, Matmul>::run,
    QuantizedRange<Simd, Dot>::quantize,
    QuantizedRange<Simd, Dot>::linear,
    ElementwiseRange<Simd>::norm,
    ElementwiseRange<Simd>::gate,
    ElementwiseRange<Simd>::heads,
    DrawRange<Simd>::run,
    Attention<Simd, Products>::scratch_size,
    Attention<Simd, Products>::attend,
    Merge<Simd>::run,
};

}  // namespace
}  // namespace ramet
