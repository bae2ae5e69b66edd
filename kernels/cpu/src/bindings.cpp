// The Python module: addresses, shapes and strides in, nothing of any tensor library.
//
// Addresses come as integers, strides in elements. kernels/cpu/kernels.py is the only caller and checks
// shapes and dtypes; what only this side knows is checked here and raised as ValueError.
#include <pybind11/pybind11.h>

#include <climits>
#include <memory>
#include <stdexcept>
#include <string>

#include "attention_plan.h"
#include "dense_ops.h"
#include "features.h"

namespace py = pybind11;

namespace ramet {
namespace {

using Address = std::uintptr_t;
using Stride = std::int64_t;

template <class T = void>
T* at(Address address) {
    return reinterpret_cast<T*>(address);
}

constexpr const char* kIsaNames[] = {"portable", "avx2", "avx512", "avx512_bf16", "amx"};
constexpr int kNumIsas = 5;

const KernelTable& table_of(Isa isa) {
    switch (isa) {
#if defined(__x86_64__)
        case Isa::amx: return amx_kernels();
        case Isa::avx512_bf16: return avx512_bf16_kernels();
        case Isa::avx512: return avx512_kernels();
        case Isa::avx2: return avx2_kernels();
#endif
        default: return portable_kernels();
    }
}

Isa isa_named(const std::string& name) {
    for (int i = 0; i < kNumIsas; ++i) {
        if (name != kIsaNames[i]) continue;
        if (i > static_cast<int>(best_isa())) {
            throw std::invalid_argument("this processor has no " + name);
        }
        return static_cast<Isa>(i);
    }
    throw std::invalid_argument("unknown instruction set " + name);
}

py::tuple available_isas() {
    py::tuple names(static_cast<int>(best_isa()) + 1);
    for (std::size_t i = 0; i < names.size(); ++i) names[i] = kIsaNames[i];
    return names;
}

void check_range(const std::int64_t* values, int count, std::int64_t end, const char* what) {
    if (!values) return;
    for (int i = 0; i < count; ++i) {
        if (values[i] >= 0 && values[i] < end) continue;
        throw std::out_of_range(std::string(what) + " " + std::to_string(values[i]) +
                                " is outside of 0 ... " + std::to_string(end - 1));
    }
}

// The threads and the instruction set of one CpuKernels; every op holds the pool's mutex, not the GIL.
class Engine {
  public:
    Engine(const std::string& isa, int num_threads)
        : pool_(num_threads), compute_{table_of(isa_named(isa)), pool_} {}

    std::unique_ptr<PackedLinear> pack(int dtype, Address weight, Address bias, int out_features,
                                       int in_features, bool gated) {
        const Guard guard(pool_);
        return std::make_unique<PackedLinear>(arena_, static_cast<DType>(dtype), at(weight), at(bias),
                                              out_features, in_features, gated);
    }

    void linear(const PackedLinear& weight, Address x, Stride x_stride, int num_rows,
                Address residual, Stride residual_stride, int activation, Address out) {
        const Guard guard(pool_);
        run_linear(compute_, weight,
                   {at(x), x_stride, num_rows, at(residual), residual_stride,
                    static_cast<Activation>(activation), at(out)});
    }

    void embedding(const PackedLinear& weight, Address token_ids, int num_tokens, Address out) {
        const Guard guard(pool_);
        const auto* ids = at<const std::int64_t>(token_ids);
        check_range(ids, num_tokens, weight.out_features(), "token id");
        run_embedding(compute_, weight, ids, num_tokens, at(out));
    }

    void norm(int dtype, Address x, Stride outer_stride, Stride inner_stride, int num_inner,
              int num_rows, Address residual, Address total, Address weight, float eps, int row_size,
              Address out) {
        const Guard guard(pool_);
        run_norm(compute_,
                 {static_cast<DType>(dtype), at(x), outer_stride, inner_stride, num_inner,
                  at(residual), at(total), at<const float>(weight), eps, row_size, at(out)},
                 num_rows);
    }

    void gate(int dtype, Address gate_up, Stride stride, int activation, int num_rows,
              int num_columns, Address out) {
        const Guard guard(pool_);
        run_gate(compute_,
                 {static_cast<DType>(dtype), at(gate_up), stride, static_cast<Activation>(activation),
                  num_columns, at(out)},
                 num_rows);
    }

    void heads(const py::list& jobs, int num_tokens) {
        HeadsJob parsed[3];
        if (jobs.size() > 3) throw std::invalid_argument("at most three jobs");
        for (std::size_t i = 0; i < jobs.size(); ++i) {
            parsed[i] = jobs[i].cast<HeadsJob>();
            check_range(parsed[i].positions, num_tokens, parsed[i].max_positions, "position");
            check_range(parsed[i].slots, num_tokens, parsed[i].num_slots, "slot");
        }
        const py::gil_scoped_release release;
        const Guard guard(pool_);
        run_heads(compute_, parsed, static_cast<int>(jobs.size()), num_tokens);
    }

    std::unique_ptr<AttentionPlan> plan(Address cu_seqlens, Address kv_lens, Address block_tables,
                                        int num_seqs, int max_num_blocks, int num_heads,
                                        int num_kv_heads, int head_dim, int block_size) {
        const SequenceTable table{num_seqs, at<const std::int32_t>(cu_seqlens),
                                  at<const std::int32_t>(kv_lens),
                                  at<const std::int32_t>(block_tables), max_num_blocks};
        return std::make_unique<AttentionPlan>(table, num_heads, num_kv_heads, head_dim, block_size,
                                               pool_.size());
    }

    void attention(const AttentionPlan& plan, int q_dtype, Address q, Stride q_token_stride,
                   Stride q_head_stride, int kv_dtype, int num_blocks, Address k_cache,
                   Address v_cache, float scale, float softcap, int window, Address out, Address lse) {
        plan.check_blocks(num_blocks);
        const Guard guard(pool_);
        AttentionTask layer{};
        layer.q_dtype = static_cast<DType>(q_dtype);
        layer.kv_dtype = static_cast<DType>(kv_dtype);
        layer.q = at(q);
        layer.q_token_stride = q_token_stride;
        layer.q_head_stride = q_head_stride;
        layer.k_cache = at(k_cache);
        layer.v_cache = at(v_cache);
        layer.num_heads = plan.num_heads();
        layer.num_kv_heads = plan.num_kv_heads();
        layer.head_dim = plan.head_dim();
        layer.block_size = plan.block_size();
        layer.scale = scale;
        layer.softcap = softcap;
        layer.window = window == 0 ? INT_MAX : window;
        layer.out = at(out);
        layer.lse = at<float>(lse);
        run_attention(compute_, plan, layer);
    }

  private:
    struct Guard {
        explicit Guard(ThreadPool& pool) : lock(pool.op_mutex()) {}
        std::lock_guard<std::mutex> lock;
    };

    ThreadPool pool_;
    Compute compute_;
    Arena arena_;
};

HeadsJob heads_job(int dtype, int out_dtype, Address x, Stride token_stride, Stride head_stride,
                   int num_heads, int head_dim, int rotary_dim, Address positions,
                   std::int64_t max_positions, Address cos_sin, Address slots,
                   std::int64_t num_slots, Address out) {
    return {static_cast<DType>(dtype),
            static_cast<DType>(out_dtype),
            at(x),
            token_stride,
            head_stride,
            num_heads,
            head_dim,
            rotary_dim,
            at<const std::int64_t>(positions),
            max_positions,
            at<const float>(cos_sin),
            at<const std::int64_t>(slots),
            num_slots,
            at(out)};
}

}  // namespace

PYBIND11_MODULE(_native, module) {
    module.doc() = "Native CPU kernels; see ramet.kernels.cpu.kernels.";
    module.def("available_isas", &available_isas);
    module.def("advise_huge_pages", [](Address address, std::size_t bytes) {
        advise_huge_pages(at(address), bytes);
    });
    py::class_<HeadsJob>(module, "HeadsJob").def(py::init(&heads_job));
    py::class_<PackedLinear>(module, "PackedLinear")
        .def_property_readonly("dtype", [](const PackedLinear& self) {
            return static_cast<int>(self.dtype());
        })
        .def_property_readonly("out_features", &PackedLinear::out_features)
        .def_property_readonly("in_features", &PackedLinear::in_features)
        .def_property_readonly("gated", &PackedLinear::gated)
        .def_property_readonly("num_bytes", &PackedLinear::num_bytes);
    py::class_<AttentionPlan>(module, "AttentionPlan")
        .def_property_readonly("num_tokens", &AttentionPlan::num_tokens);
    const auto no_gil = py::call_guard<py::gil_scoped_release>();
    py::class_<Engine>(module, "Engine")
        .def(py::init<const std::string&, int>())
        .def("pack", &Engine::pack, no_gil)
        .def("linear", &Engine::linear, no_gil)
        .def("embedding", &Engine::embedding, no_gil)
        .def("norm", &Engine::norm, no_gil)
        .def("gate", &Engine::gate, no_gil)
        .def("heads", &Engine::heads)
        .def("plan", &Engine::plan)
        .def("attention", &Engine::attention, no_gil);
}

}  // namespace ramet
