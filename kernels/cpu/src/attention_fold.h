// Folding the results of splits into a row's own, in rising order, and the rows that tasks left in parts.
//
// Source: online softmax as in Dao et al. 2022 (FlashAttention), algorithm 1; base-two exponentials.
#pragma once

#include <cmath>
#include <type_traits>

#include "attention_softmax.h"
#include "attention_task.h"

namespace ramet {
namespace {

// Running softmax of one row: maximum score (in units of ln 2), sum of weights, weighted values.
template <class S>
struct Fold {
    // Factors of what was there and of what comes, for S::W rows at once; updates max and sum.
    static void factors(float* max, float* sum, const float* new_max, const float* new_sum,
                        float* keep, float* take) {
        const auto old = S::load(max), fresh = S::load(new_max);
        // Finite where both are empty, so that the differences are no NaN.
        const auto top = S::max(S::set1(-1e30f), S::max(old, fresh));
        const auto a = exp2<S>(S::sub(old, top)), b = exp2<S>(S::sub(fresh, top));
        S::store(keep, a);
        S::store(take, b);
        S::store(sum, S::fma(S::load(new_sum), b, S::mul(S::load(sum), a)));
        S::store(max, S::max(old, fresh));
    }

    static void values(float* total, const float* fresh, float keep, float take, int n) {
        const auto a = S::set1(keep), b = S::set1(take);
        for (int d = 0; d < n; d += S::W) {
            S::store(total + d, S::fma(S::load(fresh + d), b, S::mul(S::load(total + d), a)));
        }
    }

    // Of so many rows of dim floats.
    static void rows(float* totals, const float* fresh, const float* keep, const float* take, int num_rows,
                     int dim) {
        // With a constant dim, the loop over a row has a known length.
        if (dim == 64) return rows_of(totals, fresh, keep, take, num_rows, std::integral_constant<int, 64>{});
        rows_of(totals, fresh, keep, take, num_rows, dim);
    }

    template <class Q>
    static void finish(const AttentionTask& task, const QueryToken& token, int head, float max,
                       float sum, const float* total) {
        const std::int64_t row = static_cast<std::int64_t>(token.row) * task.num_heads + head;
        task.lse[row] = (max + std::log2(sum)) * kLn2;
        const auto scale = S::set1(1.0f / sum);
        Q* out = static_cast<Q*>(task.out) + row * task.head_dim;
        for (int d = 0; d < task.head_dim; d += S::W) {
            store_upto<S>(out + d, S::mul(S::load(total + d), scale), task.head_dim - d);
        }
    }

  private:
    template <class Dim>
    static void rows_of(float* totals, const float* fresh, const float* keep, const float* take, int num_rows,
                        Dim dim) {
        for (int r = 0; r < num_rows; ++r) {
            values(totals + r * dim, fresh + r * dim, keep[r], take[r], dim);
        }
    }
};

template <class S>
struct Merge {
    // Folds the partial results of the task's tokens, in the same way as a task that has all splits.
    static void run(const AttentionTask& task, void* scratch) {
        const int dim = padded_head_dim(task.head_dim);
        const int group = task.num_heads / task.num_kv_heads;
        auto* total = static_cast<float*>(scratch);
        for (int i = 0; i < task.num_tokens; ++i) {
            for (int head = task.first_kv_head * group; head < task.last_kv_head * group; ++head) {
                merge_row(task, task.tokens[i], head, total, dim);
            }
        }
    }

  private:
    static void merge_row(const AttentionTask& task, const QueryToken& token, int head, float* total,
                          int dim) {
        alignas(64) float max[S::W], sum[S::W], new_max[S::W], new_sum[S::W], keep[S::W], take[S::W];
        const float* prefix = partial_of(task, token, 0, head);
        std::memcpy(total, prefix, dim * sizeof(float));
        S::store(max, S::set1(prefix[dim]));
        S::store(sum, S::set1(prefix[dim + 1]));
        for (int split = token.prefix_end; split <= token.position / kSplit; ++split) {
            const float* partial = partial_of(task, token, 1 + split - token.prefix_end, head);
            S::store(new_max, S::set1(partial[dim]));
            S::store(new_sum, S::set1(partial[dim + 1]));
            Fold<S>::factors(max, sum, new_max, new_sum, keep, take);
            Fold<S>::values(total, partial, keep[0], take[0], dim);
        }
        if (task.q_dtype == DType::bf16) {
            Fold<S>::template finish<bf16>(task, token, head, max[0], sum[0], total);
        } else {
            Fold<S>::template finish<float>(task, token, head, max[0], sum[0], total);
        }
    }
};

}  // namespace
}  // namespace ramet
