#if defined(__x86_64__)

#include "dot_avx512.h"
#include "quantized_range.h"

namespace ramet {

void avx512_vnni_linear(const QuantizedJob& job, int first_panel, int last_panel, int first_row,
                        int last_row) {
    QuantizedRange<Avx512Simd, Avx512Dot>::linear(job, first_panel, last_panel, first_row, last_row);
}

}  // namespace ramet

#endif
