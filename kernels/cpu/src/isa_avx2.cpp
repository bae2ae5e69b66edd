#if defined(__x86_64__)

#include "dot_avx2.h"
#include "isa_table.h"
#include "matmul_vector.h"
#include "simd_avx2.h"

namespace ramet {

const KernelTable& avx2_kernels() {
    return kKernelTable<Avx2Simd, VectorMatmul<Avx2Simd>, Avx2Dot, VectorProducts<Avx2Simd>>;
}

}  // namespace ramet

#endif
