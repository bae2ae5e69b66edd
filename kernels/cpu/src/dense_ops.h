// Linear layers and elementwise ops over all threads: cuts a job into tasks. It decides who computes
// what, never how; the results do not depend on it.
#pragma once

#include "kernel_table.h"
#include "packed_linear.h"
#include "threads.h"

namespace ramet {

struct Compute {
    const KernelTable& kernels;
    ThreadPool& pool;
};

struct LinearCall {
    const void* x;  // [num_rows, in_features] of the weight's dtype
    std::int64_t x_stride;
    int num_rows;
    const void* residual;  // see LinearJob
    std::int64_t residual_stride;
    Activation activation;  // none unless the weight is gated
    void* out;
    std::int64_t out_stride;
    bool wide_out = false;
    float softcap = 0;
    // What makes x, row by row as rows are packed; null: x is there.
    const NormJob* norm = nullptr;
};

// body(first, last) over rows of call.x, each made just before where a norm makes it.
template <class Body>
void for_normed_rows(const KernelTable& kernels, const LinearCall& call, int first_row, int last_row,
                     const Body& body) {
    if (!call.norm) return body(first_row, last_row);
    for (int row = first_row; row < last_row; ++row) {
        kernels.norm(*call.norm, row, row + 1);
        body(row, row + 1);
    }
}

// activations: the packed rows of call.x.
LinearJob linear_job(const PackedLinear& weight, const LinearCall& call, const void* activations);

void run_linear(const Compute& compute, const PackedLinear& weight, const LinearCall& call);

void run_embedding(const Compute& compute, const PackedLinear& weight, const std::int64_t* token_ids,
                   int num_tokens, float scale, void* out);

void run_take_rows(const Compute& compute, const void* x, std::size_t row_bytes,
                   const std::int64_t* rows, int num_rows, void* out);

void run_norm(const Compute& compute, const NormJob& job, int num_rows);

void run_gate(const Compute& compute, const GateJob& job, int num_rows);

// job.block_sums is provided here.
void run_draw(const Compute& compute, DrawJob job, int num_rows);

// Several jobs over the same tokens as one pass.
void run_heads(const Compute& compute, const HeadsJob* jobs, int num_jobs, int num_tokens);

}  // namespace ramet
