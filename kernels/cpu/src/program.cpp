#include "program.h"

#include <stdexcept>
#include <type_traits>

namespace ramet {
namespace {

constexpr std::size_t kSlotAlignment = 4096;

}  // namespace

void Program::declare(const void* address, std::size_t bytes, Rows rows, std::size_t row_bytes) {
    const auto start = reinterpret_cast<std::uintptr_t>(address);
    by_address_[start] = static_cast<int>(tensors_.size());
    tensors_.push_back({start, bytes, rows, row_bytes});
}

void Program::declare_input(const void* address, std::size_t bytes, Rows rows) {
    inputs_.push_back(static_cast<int>(tensors_.size()));
    declare(address, bytes, rows, 0);
}

Program::Place Program::place(const void* pointer) {
    if (!pointer) return {-1, 0};
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    auto after = by_address_.upper_bound(address);
    if (after != by_address_.begin()) {
        const int index = std::prev(after)->second;
        Tensor& tensor = tensors_[index];
        if (address < tensor.address + tensor.bytes) {
            tensor.last_use = static_cast<int>(steps_.size());
            if (tensor.first_use < 0) tensor.first_use = tensor.last_use;
            return {index, address - tensor.address};
        }
    }
    throw std::invalid_argument("an op of the program uses a tensor that no op of it made");
}

void Program::take_norm(Op& op) {
    auto* linear = std::get_if<LinearOp>(&op);
    if (!linear || steps_.empty()) return;
    const auto* norm = std::get_if<NormOp>(&steps_.back().op);
    if (!norm || norm->job.num_inner != 1 || norm->job.out != linear->call.x) return;
    if (linear->call.x_stride != norm->job.row_size || linear->call.num_rows != norm->num_rows) return;
    linear->norm = norm->job;
    steps_.pop_back();
}

void Program::submit(const Op& op) {
    Step step{op, {}};
    take_norm(step.op);
    std::visit(
        [&](auto& recorded) {
            recorded.visit([&](auto*& pointer, int* = nullptr, int = 1) {
                step.places.push_back(place(pointer));
            });
        },
        step.op);
    steps_.push_back(std::move(step));
}

void Program::finish(const void* result) {
    result_ = place(result).tensor;
    assign_slots();
    bases_.resize(tensors_.size());
}

void Program::assign_slots() {
    std::vector<int> free;
    const auto take = [&](const Tensor& tensor) {
        for (auto it = free.rbegin(); it != free.rend(); ++it) {
            const int slot = *it;
            if (slots_[slot].rows != tensor.rows || slots_[slot].row_bytes != tensor.row_bytes) continue;
            free.erase(std::next(it).base());
            return slot;
        }
        slots_.push_back({tensor.rows, tensor.row_bytes});
        return static_cast<int>(slots_.size()) - 1;
    };
    for (int step = 0; step < static_cast<int>(steps_.size()); ++step) {
        for (Tensor& tensor : tensors_) {
            const bool owned = tensor.row_bytes > 0 && &tensor != &tensors_[result_];
            if (owned && tensor.first_use == step) tensor.slot = take(tensor);
        }
        for (const Tensor& tensor : tensors_) {
            if (tensor.slot >= 0 && tensor.last_use == step) free.push_back(tensor.slot);
        }
    }
}

void Program::lay_out(const int (&num_rows)[kNumRowKinds], const std::vector<void*>& inputs,
                      void* result) {
    std::vector<std::size_t> offsets;
    std::size_t total = 0;
    for (const Slot& slot : slots_) {
        offsets.push_back(total);
        const std::size_t bytes = num_rows[static_cast<int>(slot.rows)] * slot.row_bytes;
        total += ceil_div(bytes, kSlotAlignment) * kSlotAlignment;
    }
    auto* memory = static_cast<std::byte*>(memory_.reserve(total));
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
        bases_[i] = tensors_[i].slot < 0 ? nullptr : memory + offsets[tensors_[i].slot];
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        bases_[inputs_[i]] = static_cast<std::byte*>(inputs[i]);
    }
    bases_[result_] = static_cast<std::byte*>(result);
}

void Program::run(const Compute& compute, const int (&num_rows)[kNumRowKinds],
                  const AttentionPlan& plan, const std::vector<void*>& inputs, void* result) {
    if (inputs.size() != inputs_.size()) throw std::invalid_argument("not the program's inputs");
    lay_out(num_rows, inputs, result);
    for (const Step& step : steps_) {
        Op op = step.op;
        const auto run = [&](auto& op) {
            auto place = step.places.begin();
            op.visit([&](auto*& pointer, int* rows = nullptr, int rows_each = 1) {
                const Place at = *place++;
                if (at.tensor < 0) return;
                using Pointer = std::remove_reference_t<decltype(pointer)>;
                pointer = reinterpret_cast<Pointer>(bases_[at.tensor] + at.offset);
                const int kind = static_cast<int>(tensors_[at.tensor].rows);
                if (rows) *rows = num_rows[kind] * rows_each;
            });
            if constexpr (std::is_same_v<std::decay_t<decltype(op)>, AttentionOp>) op.plan = &plan;
            op.run(compute);
        };
        std::visit(run, op);
    }
}

}  // namespace ramet
