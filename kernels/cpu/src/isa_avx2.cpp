#if defined(__x86_64__)

#include "attention_fold.h"
#include "attention_range.h"
#include "draw_range.h"
#include "elementwise_range.h"
#include "linear_range.h"
#include "matmul_vector.h"
#include "simd_avx2.h"

namespace ramet {

const KernelTable& avx2_kernels() {
    using Simd = Avx2Simd;
    using Matmul = VectorMatmul<Simd>;
    using Products = VectorProducts<Simd>;
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
