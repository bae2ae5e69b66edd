// Norms, gated activations, rotation and placement of heads, over a range of rows. A row's arithmetic does not
// depend on the range.
#pragma once

#include <cmath>

#include "fetch_ahead.h"
#include "int8_row.h"
#include "kernel_table.h"
#include "vector_math.h"

namespace ramet {
namespace {

template <class S>
struct ElementwiseRange {
    static void norm(const NormJob& job, int first_row, int last_row) {
        for (int row = first_row; row < last_row; ++row) {
            if (job.dtype == DType::bf16) {
                norm_row<bf16>(job, row);
            } else {
                norm_row<float>(job, row);
            }
        }
    }

    static void gate(const GateJob& job, int first_row, int last_row) {
        for (int row = first_row; row < last_row; ++row) {
            if (job.dtype == DType::bf16) {
                gate_row<bf16>(job, row);
            } else {
                gate_row<float>(job, row);
            }
        }
    }

    static void heads(const HeadsJob& job, int first_token, int last_token) {
        if (job.dtype == DType::bf16) {
            heads_of<bf16>(job, first_token, last_token);
        } else {
            heads_of<float>(job, first_token, last_token);
        }
    }

  private:
    using Reg = typename S::Reg;

    template <class T>
    static void norm_row(const NormJob& job, int row) {
        const int n = job.row_size;
        const auto offset = static_cast<std::int64_t>(row) * n;
        const T* x = static_cast<const T*>(job.x) + row / job.num_inner * job.x_outer_stride +
                     row % job.num_inner * job.x_inner_stride;
        if (job.residual) {
            const T* residual = static_cast<const T*>(job.residual) + offset;
            T* total = static_cast<T*>(job.total) + offset;
            for (int i = 0; i < n; i += S::W) {
                const Reg sum =
                    S::add(load_upto<S>(residual + i, n - i), load_upto<S>(x + i, n - i));
                store_upto<S>(total + i, sum, n - i);
            }
            x = total;
        }
        Reg squares = S::zero();
        for (int i = 0; i < n; i += S::W) {
            const Reg value = load_upto<S>(x + i, n - i);
            squares = S::fma(value, value, squares);
        }
        const float mean = S::reduce_add(squares) / static_cast<float>(n);
        const Reg scale = S::set1(1.0f / std::sqrt(mean + job.eps));
        T* out = static_cast<T*>(job.out) + offset;
        for (int i = 0; i < n; i += S::W) {
            const Reg scaled = S::mul(load_upto<S>(x + i, n - i), scale);
            store_upto<S>(out + i, S::mul(scaled, load_upto<S>(job.weight + i, n - i)), n - i);
        }
    }

    template <class T>
    static void gate_row(const GateJob& job, int row) {
        const int n = job.num_columns;
        const T* gate = static_cast<const T*>(job.gate_up) + row * job.stride;
        const T* up = gate + n;
        T* out = static_cast<T*>(job.out) + static_cast<std::int64_t>(row) * n;
        for (int i = 0; i < n; i += S::W) {
            const Reg activated = activate<S>(job.activation, load_upto<S>(gate + i, n - i));
            store_upto<S>(out + i, S::mul(activated, load_upto<S>(up + i, n - i)), n - i);
        }
    }

    template <class T>
    static void heads_of(const HeadsJob& job, int first_token, int last_token) {
        switch (job.out_dtype) {
            case DType::bf16: return heads_typed<T, bf16>(job, first_token, last_token);
            case DType::i8: return heads_typed<T, std::int8_t>(job, first_token, last_token);
            default: return heads_typed<T, float>(job, first_token, last_token);
        }
    }

    template <class T, class U>
    static void heads_typed(const HeadsJob& job, int first_token, int last_token) {
        if (job.part != CachePart::none && in_tiles(job.head_dim, job.block_size)) {
            return heads_to_tiles<T, U>(job, first_token, last_token);
        }
        const int size = row_size(static_cast<const U*>(job.out), job.head_dim);
        for (int token = first_token; token < last_token; ++token) {
            const T* x = static_cast<const T*>(job.x) + token * job.token_stride;
            const std::int64_t row = job.slots ? job.slots[token] : token;
            U* out = static_cast<U*>(job.out) + row * job.num_heads * size;
            for (int head = 0; head < job.num_heads; ++head) {
                place(job, token, x, out);
                x += job.head_stride;
                out += size;
            }
        }
    }

    template <class T, class U>
    static void heads_to_tiles(const HeadsJob& job, int first_token, int last_token) {
        const TileLayout<U> layout(job.num_heads, job.head_dim, job.block_size);
        const auto tile_of = [&](int token) {
            const std::int64_t block = job.slots[token] / job.block_size;
            const auto position = static_cast<int>(job.slots[token] % job.block_size);
            return static_cast<U*>(job.out) + layout.offset(block, position / kHalf);
        };
        alignas(64) U row[kMaxInt8HeadDim + kScaleBytes];
        U* next = tile_of(first_token);
        for (int token = first_token; token < last_token; ++token) {
            const T* x = static_cast<const T*>(job.x) + token * job.token_stride;
            const auto position = static_cast<int>(job.slots[token] % kHalf);
            U* tile = next;
            if (token + 1 < last_token) next = tile_of(token + 1);
            for (int head = 0; head < job.num_heads; ++head) {
                if (next != tile) {
                    fetch_place(job, layout, static_cast<int>(job.slots[token + 1] % kHalf),
                                next + head * layout.head_size());
                }
                place(job, token, x, row);
                U* target = tile + head * layout.head_size();
                if (job.part == CachePart::keys) {
                    put_key(row, layout.row_size, position, target);
                } else {
                    put_value(row, job.head_dim, position, target);
                }
                x += job.head_stride;
            }
        }
    }

    // Lines of a tile where the row of position p will be written, which are seldom in a near cache.
    template <class U>
    static void fetch_place(const HeadsJob& job, const TileLayout<U>& layout, int p, const U* tile) {
        const bool keys = job.part == CachePart::keys;
        const U* first = keys ? tile : tile + p / kPerWord<U> * kPerWord<U> * job.head_dim;
        const int count = keys ? layout.tile_size() : kPerWord<U> * job.head_dim;
        for (int i = 0; i < count; i += kCacheLine / sizeof(U)) __builtin_prefetch(first + i, 1);
    }

    template <class T>
    static void place(const HeadsJob& job, int token, const T* x, std::int8_t* out) {
        alignas(64) float head[kMaxInt8HeadDim];
        place(job, token, x, head);
        to_int8_row(head, job.head_dim, out);
    }

    // What is stored at i ends before what is still to be read after i.
    template <class T, class U>
    static void place(const HeadsJob& job, int token, const T* x, U* out) {
        if (job.rotary_dim) rotate(job, token, x, out);
        for (int d = job.rotary_dim; d < job.head_dim; d += S::W) {
            const int left = job.head_dim - d;
            store_upto<S>(out + d, load_upto<S>(x + d, left), left);
        }
    }

    template <class T, class U>
    static void rotate(const HeadsJob& job, int token, const T* x, U* out) {
        const int half = job.rotary_dim / 2;
        const float* cos = job.cos_sin + job.positions[token] * job.rotary_dim;
        const float* sin = cos + half;
        for (int i = 0; i < half; i += S::W) {
            const int left = half - i;
            const Reg a = load_upto<S>(x + i, left), b = load_upto<S>(x + half + i, left);
            const Reg c = load_upto<S>(cos + i, left), s = load_upto<S>(sin + i, left);
            const Reg first = S::sub(S::mul(a, c), S::mul(b, s));
            const Reg second = S::add(S::mul(b, c), S::mul(a, s));
            store_upto<S>(out + i, rounded<S, T>(first), left);
            store_upto<S>(out + half + i, rounded<S, T>(second), left);
        }
    }
};

}  // namespace
}  // namespace ramet
