#include "isa_table.h"
#include "matmul_vector.h"
#include "simd_portable.h"

namespace ramet {

const KernelTable& portable_kernels() {
    return kKernelTable<PortableSimd, VectorMatmul<PortableSimd>, VectorProducts<PortableSimd>>;
}

}  // namespace ramet
