#if defined(__x86_64__)

#include "dot_avx512.h"
#include "features.h"
#include "isa_table.h"
#include "matmul_vector.h"
#include "simd_avx512.h"

namespace ramet {

const KernelTable& avx512_kernels() {
    static const KernelTable table = [] {
        KernelTable table = kKernelTable<Avx512Simd, VectorMatmul<Avx512Simd>, Avx512Dot,
                                         VectorProducts<Avx512Simd>>;
        if (has_avx512_vnni()) table.quantized_linear = avx512_vnni_linear;
        return table;
    }();
    return table;
}

}  // namespace ramet

#endif
