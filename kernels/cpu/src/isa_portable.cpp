#include "dot_portable.h"
#include "isa_table.h"
#include "matmul_vector.h"
#include "simd_portable.h"

namespace ramet {

const KernelTable& portable_kernels() {
    return kKernelTable<PortableSimd, VectorMatmul<PortableSimd>, PortableDot,
                        VectorProducts<PortableSimd>>;
}

}  // namespace ramet
