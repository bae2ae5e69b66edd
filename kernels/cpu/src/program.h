// Ops recorded once and run again at every step, on that step's memory and numbers of rows.
//
// While recording, ops come with the addresses of a specimen: a small step whose tensors are declared
// beforehand and whose contents do not matter. An address inside of a declared tensor becomes (tensor,
// offset); offsets do not depend on the number of rows, for a view begins in the first row. Tensors whose
// lives do not overlap share memory.
#pragma once

#include <map>
#include <vector>

#include "ops.h"

namespace ramet {

// A step has so many rows of each kind.
enum class Rows : int { tokens = 0, logits = 1 };
constexpr int kNumRowKinds = 2;

class Program : public OpSink {
  public:
    // A tensor that ops write before they read it.
    void declare(const void* address, std::size_t bytes, Rows rows, std::size_t row_bytes);
    // A tensor that comes with the step; in the order of `run`.
    void declare_input(const void* address, std::size_t bytes, Rows rows);

    // Records; a norm followed by the product of what it makes becomes one op with it. Throws
    // std::invalid_argument where an op uses memory that was not declared.
    void submit(const Op& op) override;

    // Ends recording; `result` is a declared tensor.
    void finish(const void* result);

    // `inputs` and `result` are dense. Throws what the ops throw.
    void run(const Compute& compute, const int (&num_rows)[kNumRowKinds], const AttentionPlan& plan,
             const std::vector<void*>& inputs, void* result);

  private:
    struct Tensor {
        std::uintptr_t address;
        std::size_t bytes;
        Rows rows;
        std::size_t row_bytes;  // 0: an input
        int first_use = -1, last_use = -1;
        int slot = -1;
    };
    struct Place {
        int tensor;  // -1: a null pointer
        std::size_t offset;
    };
    // Memory of one tensor at a time.
    struct Slot {
        Rows rows;
        std::size_t row_bytes;
    };
    struct Step {
        Op op;
        std::vector<Place> places;  // as the op visits them
    };

    // Gives a linear layer the norm of the step before, if that makes its activations.
    void take_norm(Op& op);
    Place place(const void* pointer);
    void assign_slots();
    void lay_out(const int (&num_rows)[kNumRowKinds], const std::vector<void*>& inputs, void* result);

    std::vector<Tensor> tensors_;
    std::map<std::uintptr_t, int> by_address_;
    std::vector<Step> steps_;
    std::vector<int> inputs_;
    std::vector<Slot> slots_;
    int result_ = -1;
    // Of the step in progress, by tensor.
    std::vector<std::byte*> bases_;
    Scratch memory_;
};

}  // namespace ramet
