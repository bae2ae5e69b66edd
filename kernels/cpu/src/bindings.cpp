// The Python module: addresses, shapes and strides in, nothing of any tensor library.
//
// Addresses come as integers, strides in elements. kernels/cpu/kernels.py is the only caller and checks
// shapes and dtypes; what only this side knows is checked here and raised as ValueError.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <climits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "compact_weight.h"
#include "dense_weight.h"
#include "features.h"
#include "int8_row.h"
#include "program.h"
#include "quantized_weight.h"

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

std::string fastest_isa_name() { return kIsaNames[static_cast<int>(fastest_isa())]; }

// The threads and the instruction set of one CpuKernels. What runs holds the pool's mutex, not the GIL.
class Engine : public OpSink {
  public:
    Engine(const std::string& isa, int num_threads)
        : pool_(num_threads), compute_{table_of(isa_named(isa)), pool_} {}

    std::unique_ptr<PackedLinear> pack(int dtype, Address weight, Address bias, int out_features,
                                       int in_features, bool gated) {
        const Guard guard(pool_);
        const auto type = static_cast<DType>(dtype);
        if (type == DType::bf16 && compute_.kernels.expands) {
            return std::make_unique<CompactWeight>(arena_, pool_, at<const bf16>(weight),
                                                   at<const bf16>(bias), out_features, in_features,
                                                   gated);
        }
        return std::make_unique<DenseWeight>(arena_, pool_, type, at(weight), at(bias), out_features,
                                             in_features, gated);
    }

    std::unique_ptr<PackedLinear> pack_quantized(int dtype, int bits, Address values, Address scales,
                                                 Address minimums, Address bias, int out_features,
                                                 int in_features, bool gated) {
        const Guard guard(pool_);
        const QuantizedWeight::Source source{at<const std::uint8_t>(values), at<const f16>(scales),
                                             at<const f16>(minimums), at(bias)};
        return std::make_unique<QuantizedWeight>(arena_, pool_, static_cast<DType>(dtype), bits,
                                                 source, out_features, in_features, gated);
    }

    std::unique_ptr<AttentionPlan> plan(Address cu_seqlens, Address kv_lens, Address block_tables,
                                        int num_seqs, int max_num_blocks, int num_heads,
                                        int num_kv_heads, int head_dim, int block_size,
                                        bool share_prefixes) {
        const SequenceTable table{num_seqs, at<const std::int32_t>(cu_seqlens),
                                  at<const std::int32_t>(kv_lens),
                                  at<const std::int32_t>(block_tables), max_num_blocks};
        return std::make_unique<AttentionPlan>(table, num_heads, num_kv_heads, head_dim, block_size,
                                               pool_.size(), share_prefixes);
    }

    void submit(const Op& op) override {
        const Guard guard(pool_);
        std::visit([&](const auto& op) { op.run(compute_); }, op);
    }

    void draw(Address logits, Stride stride, int num_rows, int vocab_size, Address temperature,
              Address min_p, Address uniform, Address out) {
        const Guard guard(pool_);
        run_draw(compute_,
                 {at<const float>(logits), stride, vocab_size, at<const float>(temperature),
                  at<const float>(min_p), at<const double>(uniform), nullptr,
                  at<std::int64_t>(out)},
                 num_rows);
    }

    void run(Program& program, int num_tokens, int num_logit_rows, const AttentionPlan& plan,
             const std::vector<Address>& inputs, Address result) {
        std::vector<void*> pointers;
        for (const Address input : inputs) pointers.push_back(at(input));
        const Guard guard(pool_);
        program.run(compute_, {num_tokens, num_logit_rows}, plan, pointers, at(result));
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

void linear(OpSink& sink, const PackedLinear& weight, Address x, Stride x_stride, int num_rows,
            Address residual, Stride residual_stride, int activation, Address out) {
    const int num_columns = activation == 0 ? weight.out_features() : weight.out_features() / 2;
    sink.submit(LinearOp{&weight,
                         {at(x), x_stride, num_rows, at(residual), residual_stride,
                          static_cast<Activation>(activation), at(out), num_columns}});
}

void logits(OpSink& sink, const PackedLinear& weight, Address x, Stride x_stride, int num_rows,
            float softcap, Address out) {
    sink.submit(LogitsOp{&weight, at(x), x_stride, num_rows, softcap, at<float>(out)});
}

void embedding(OpSink& sink, const PackedLinear& weight, Address token_ids, int num_tokens,
               float scale, Address out) {
    sink.submit(
        EmbeddingOp{&weight, at<const std::int64_t>(token_ids), num_tokens, scale, at(out)});
}

void take_rows(OpSink& sink, Address x, int num_source_rows, std::size_t row_bytes, Address rows,
               int num_rows, Address out) {
    sink.submit(TakeRowsOp{at(x), num_source_rows, row_bytes, at<const std::int64_t>(rows), num_rows,
                           at(out)});
}

void norm(OpSink& sink, int dtype, Address x, Stride outer_stride, Stride inner_stride, int num_inner,
          int num_rows, Address residual, Address total, Address weight, float eps, int row_size,
          Address out) {
    sink.submit(NormOp{{static_cast<DType>(dtype), at(x), outer_stride, inner_stride, num_inner,
                        at(residual), at(total), at<const float>(weight), eps, row_size, at(out)},
                       num_rows});
}

void gate(OpSink& sink, int dtype, Address gate_up, Stride stride, int activation, int num_rows,
          int num_columns, Address out) {
    sink.submit(GateOp{{static_cast<DType>(dtype), at(gate_up), stride,
                        static_cast<Activation>(activation), num_columns, at(out)},
                       num_rows});
}

void heads(OpSink& sink, const std::vector<HeadsJob>& jobs, int num_tokens) {
    if (jobs.size() > HeadsOp::kMaxJobs) throw std::invalid_argument("too many jobs");
    HeadsOp op{{}, static_cast<int>(jobs.size()), num_tokens};
    std::copy(jobs.begin(), jobs.end(), op.jobs);
    sink.submit(op);
}

void attention(OpSink& sink, const AttentionPlan& plan, int q_dtype, Address q, Stride q_token_stride,
               Stride q_head_stride, int kv_dtype, int num_blocks, Address k_cache, Address v_cache,
               float scale, float softcap, int window, Address out, Address lse) {
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
    sink.submit(AttentionOp{&plan, layer, num_blocks});
}

HeadsJob heads_job(int dtype, int out_dtype, Address x, Stride token_stride, Stride head_stride,
                   int num_heads, int head_dim, int rotary_dim, Address positions,
                   std::int64_t max_positions, Address cos_sin, Address slots,
                   std::int64_t num_slots, int part, int block_size, Address out) {
    if (static_cast<DType>(out_dtype) == DType::i8 && head_dim > kMaxInt8HeadDim) {
        throw std::invalid_argument("a cache of int8 takes heads of at most " +
                                    std::to_string(kMaxInt8HeadDim) + ", not " +
                                    std::to_string(head_dim));
    }
    if (slots && static_cast<CachePart>(part) == CachePart::none) {
        throw std::invalid_argument("slots are those of keys or of values");
    }
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
            static_cast<CachePart>(part),
            block_size,
            at(out)};
}

}  // namespace

PYBIND11_MODULE(_native, module) {
    module.doc() = "Native CPU kernels; see ramet.kernels.cpu.kernels.";
    module.def("available_isas", &available_isas);
    module.def("fastest_isa", &fastest_isa_name);
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
    py::class_<OpSink>(module, "OpSink")
        .def("linear", &linear, no_gil)
        .def("logits", &logits, no_gil)
        .def("embedding", &embedding, no_gil)
        .def("take_rows", &take_rows, no_gil)
        .def("norm", &norm, no_gil)
        .def("gate", &gate, no_gil)
        .def("heads", &heads, no_gil)
        .def("attention", &attention, no_gil);
    py::class_<Program, OpSink>(module, "Program")
        .def(py::init())
        .def("declare", [](Program& self, Address address, std::size_t bytes, int rows,
                           std::size_t row_bytes) {
            self.declare(at(address), bytes, static_cast<Rows>(rows), row_bytes);
        })
        .def("declare_input", [](Program& self, Address address, std::size_t bytes, int rows) {
            self.declare_input(at(address), bytes, static_cast<Rows>(rows));
        })
        .def("finish", [](Program& self, Address result) { self.finish(at(result)); });
    py::class_<Engine, OpSink>(module, "Engine")
        .def(py::init<const std::string&, int>())
        .def("pack", &Engine::pack, no_gil)
        .def("pack_quantized", &Engine::pack_quantized, no_gil)
        .def("plan", &Engine::plan)
        .def("draw", &Engine::draw, no_gil)
        .def("run", &Engine::run, no_gil);
}

}  // namespace ramet
