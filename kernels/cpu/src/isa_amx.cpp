#if defined(__x86_64__)

#include "attention_amx.h"
#include "attention_fold.h"
#include "attention_range.h"
#include "draw_range.h"
#include "elementwise_range.h"
#include "linear_range.h"
#include "matmul_amx.h"
#include "simd_avx512.h"

namespace ramet {

const KernelTable& amx_kernels() {
    using Simd = Avx512Simd;
    using Matmul = AmxMatmul;
    using Products = AmxProducts;
    static constexpr KernelTable table = {
        LinearRange<Simd, Matmul>::run,
        ElementwiseRange<Simd>::norm,
        ElementwiseRange<Simd>::gate,
        ElementwiseRange<Simd>::heads,
        DrawRange<Simd>::run,
        Attention<Simd, Products>::scratch_size,
        Attention<Simd, Products>::attend,
        Merge<Simd>::run,
    };
    return table;
}

}  // namespace ramet

#endif
