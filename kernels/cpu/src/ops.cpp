#include "ops.h"

#include <stdexcept>
#include <string>

namespace ramet {
namespace {

void check_range(const std::int64_t* values, int count, std::int64_t end, const char* what) {
    if (!values) return;
    for (int i = 0; i < count; ++i) {
        if (values[i] >= 0 && values[i] < end) continue;
        throw std::out_of_range(std::string(what) + " " + std::to_string(values[i]) +
                                " is outside of 0 ... " + std::to_string(end - 1));
    }
}

}  // namespace

void LinearOp::run(const Compute& compute) const {
    LinearCall normed = call;
    normed.norm = norm ? &*norm : nullptr;
    run_linear(compute, *weight, normed);
}

void LogitsOp::run(const Compute& compute) const {
    const int num_columns = weight->out_features();
    run_linear(compute, *weight,
               {x, x_stride, num_rows, nullptr, 0, Activation::none, out, num_columns, true, softcap});
}

void EmbeddingOp::run(const Compute& compute) const {
    check_range(token_ids, num_tokens, weight->out_features(), "token id");
    run_embedding(compute, *weight, token_ids, num_tokens, scale, out);
}

void TakeRowsOp::run(const Compute& compute) const {
    check_range(rows, num_rows, num_source_rows, "row");
    run_take_rows(compute, x, row_bytes, rows, num_rows, out);
}

void HeadsOp::run(const Compute& compute) const {
    for (int i = 0; i < num_jobs; ++i) {
        check_range(jobs[i].positions, num_tokens, jobs[i].max_positions, "position");
        check_range(jobs[i].slots, num_tokens, jobs[i].num_slots, "slot");
    }
    run_heads(compute, jobs, num_jobs, num_tokens);
}

void AttentionOp::run(const Compute& compute) const {
    plan->check_blocks(num_blocks);
    run_attention(compute, *plan, layer);
}

}  // namespace ramet
