// Every op as a value: what it reads and writes, and how many rows it has.
//
// An op can be run at once (Engine) or kept and run again on other memory (Program). `visit` shows the
// memory that belongs to a step: visit(pointer), or visit(pointer, rows, rows_each) where the op's count
// `rows` is rows_each times the rows behind that pointer. Pointers that it does not show (weights, tables,
// caches) are the same at every step.
#pragma once

#include <optional>
#include <variant>

#include "attention_plan.h"
#include "dense_ops.h"

namespace ramet {

struct LinearOp {
    const PackedLinear* weight;
    LinearCall call;
    // Makes call.x; see Program::submit.
    std::optional<NormJob> norm = std::nullopt;

    template <class Visit>
    void visit(const Visit& visit) {
        visit(call.out, &call.num_rows, 1);
        visit(call.x);
        visit(call.residual);
        if (!norm) return;
        visit(norm->out);
        visit(norm->x);
        visit(norm->residual);
        visit(norm->total);
    }
    void run(const Compute& compute) const;
};

// linear with its float32 sums as they are and, with a softcap c, bounded as c * tanh(y / c).
struct LogitsOp {
    const PackedLinear* weight;
    const void* x;
    std::int64_t x_stride;
    int num_rows;
    float softcap;  // 0: none
    float* out;

    template <class Visit>
    void visit(const Visit& visit) {
        visit(out, &num_rows, 1);
        visit(x);
    }
    void run(const Compute& compute) const;
};

struct EmbeddingOp {
    const PackedLinear* weight;
    const std::int64_t* token_ids;
    int num_tokens;
    float scale;  // of the rows; 1: as they are
    void* out;

    template <class Visit>
    void visit(const Visit& visit) {
        visit(out, &num_tokens, 1);
        visit(token_ids);
    }
    // Throws std::out_of_range where an id is not a row.
    void run(const Compute& compute) const;
};

// Copies rows of x, which are dense.
struct TakeRowsOp {
    const void* x;
    int num_source_rows;
    std::size_t row_bytes;
    const std::int64_t* rows;
    int num_rows;
    void* out;

    template <class Visit>
    void visit(const Visit& visit) {
        visit(out, &num_rows, 1);
        visit(x, &num_source_rows, 1);
        visit(rows);
    }
    // Throws std::out_of_range where a row is not one of x.
    void run(const Compute& compute) const;
};

struct NormOp {
    NormJob job;
    int num_rows;

    template <class Visit>
    void visit(const Visit& visit) {
        visit(job.out, &num_rows, job.num_inner);
        visit(job.x);
        visit(job.residual);
        visit(job.total);
    }
    void run(const Compute& compute) const { run_norm(compute, job, num_rows); }
};

struct GateOp {
    GateJob job;
    int num_rows;

    template <class Visit>
    void visit(const Visit& visit) {
        visit(job.out, &num_rows, 1);
        visit(job.gate_up);
    }
    void run(const Compute& compute) const { run_gate(compute, job, num_rows); }
};

struct HeadsOp {
    static constexpr int kMaxJobs = 3;
    HeadsJob jobs[kMaxJobs];
    int num_jobs;
    int num_tokens;

    template <class Visit>
    void visit(const Visit& visit) {
        for (int i = 0; i < num_jobs; ++i) {
            visit(jobs[i].x, &num_tokens, 1);
            visit(jobs[i].positions);
            visit(jobs[i].slots);
            // Where there are slots, they are of a cache.
            if (!jobs[i].slots) visit(jobs[i].out);
        }
    }
    // Throws std::out_of_range where a position or a slot does not exist.
    void run(const Compute& compute) const;
};

struct AttentionOp {
    const AttentionPlan* plan;  // the step's
    AttentionTask layer;
    int num_blocks;  // of the caches

    template <class Visit>
    void visit(const Visit& visit) {
        visit(layer.out);
        visit(layer.lse);
        visit(layer.q);
    }
    // Throws std::invalid_argument where a block table names a block that the caches have not.
    void run(const Compute& compute) const;
};

using Op = std::variant<LinearOp, LogitsOp, EmbeddingOp, TakeRowsOp, NormOp, GateOp, HeadsOp, AttentionOp>;

// Where ops go.
class OpSink {
  public:
    virtual ~OpSink() = default;
    virtual void submit(const Op& op) = 0;
};

}  // namespace ramet
