// Linear layers on quantized weights over all threads. As in dense_ops.h, the results do not depend on who
// computes what.
#pragma once

#include "dense_ops.h"
#include "quantized_weight.h"

namespace ramet {

// Called by run_linear. Rows of x become 8 bits a value first (quantized_job.h).
void run_quantized_linear(const Compute& compute, const QuantizedWeight& weight,
                          const LinearCall& call);

}  // namespace ramet
