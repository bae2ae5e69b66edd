#if defined(__x86_64__)

#include "isa_table.h"
#include "matmul_vector.h"
#include "simd_avx512.h"

namespace ramet {

const KernelTable& avx512_kernels() {
    return kKernelTable<Avx512Simd, VectorMatmul<Avx512Simd>, VectorProducts<Avx512Simd>>;
}

}  // namespace ramet

#endif
