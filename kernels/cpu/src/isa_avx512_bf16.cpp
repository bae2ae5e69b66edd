#if defined(__x86_64__)

#include "dot_avx512.h"
#include "isa_table.h"
#include "matmul_vector.h"
#include "simd_avx512.h"

namespace ramet {

const KernelTable& avx512_bf16_kernels() {
    return kKernelTable<Avx512Simd, VectorMatmul<Avx512Simd>, Avx512Dot,
                        VectorProducts<Avx512Simd>>;
}

}  // namespace ramet

#endif
