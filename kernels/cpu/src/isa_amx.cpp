#if defined(__x86_64__)

#include "attention_amx.h"
#include "dot_amx.h"
#include "isa_table.h"
#include "matmul_amx.h"
#include "simd_avx512.h"

namespace ramet {

const KernelTable& amx_kernels() {
    return kKernelTable<Avx512Simd, AmxMatmul, AmxDot, AmxProducts>;
}

}  // namespace ramet

#endif
