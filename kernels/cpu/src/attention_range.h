// One attention task: scores, softmax and weighted values of its rows, split by split.
//
// Source: online softmax as in Dao et al. 2022 (FlashAttention), algorithm 1; base-two exponentials.
#pragma once

#include <climits>
#include <cmath>
#include <limits>

#include "attention_pack.h"
#include "kernel_table.h"

namespace ramet {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

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
};

// Queries of elements Q, cache of elements C, products of elements T.
template <class S, class M, class Q, class C, class T>
class AttentionRange {
  public:
    static std::size_t scratch_size(int head_dim) {
        const std::size_t dim = padded_head_dim(head_dim);
        return kMaxTaskRows * dim * (sizeof(T) + sizeof(float)) + 2 * kSplit * dim * sizeof(T) +
               kBlockRows * kSplit * (sizeof(T) + sizeof(float)) + kBlockRows * dim * sizeof(float) +
               kHalf * dim * sizeof(T) + 2 * kMaxTaskRows * sizeof(float);
    }

    AttentionRange(const AttentionTask& task, void* scratch)
        : task_(task),
          dim_(padded_head_dim(task.head_dim)),
          num_groups_(dim_ / kGroup),
          heads_per_token_(task.num_heads / task.num_kv_heads),
          num_rows_(task.num_tokens * heads_per_token_),
          next_(static_cast<std::byte*>(scratch)),
          queries_(carve<T>(kMaxTaskRows * dim_)),
          totals_(carve<float>(kMaxTaskRows * dim_)),
          keys_(carve<T>(kSplit * dim_)),
          values_(carve<T>(kSplit * dim_)),
          weights_(carve<T>(kBlockRows * kSplit)),
          scores_(carve<float>(kBlockRows * kSplit)),
          fresh_(carve<float>(kBlockRows * dim_)),
          max_(carve<float>(kMaxTaskRows)),
          sum_(carve<float>(kMaxTaskRows)),
          packer_(task, carve<T>(kHalf * dim_)) {}

    void run() {
        load_queries();
        M::begin();
        for (int split = task_.first_split; split < task_.last_split; ++split) run_split(split);
        M::end();
        if (task_.tokens[0].partial >= 0) return;
        for (int row = 0; row < num_rows_; ++row) {
            Fold<S>::template finish<Q>(task_, token_of(row), head_of(row), max_[row], sum_[row],
                                        totals_ + row * dim_);
        }
    }

  private:
    template <class U>
    U* carve(std::size_t count) {
        U* piece = reinterpret_cast<U*>(next_);
        next_ += count * sizeof(U);
        return piece;
    }

    const QueryToken& token_of(int row) const { return task_.tokens[row / heads_per_token_]; }
    int head_of(int row) const { return task_.kv_head * heads_per_token_ + row % heads_per_token_; }

    // Columns of the split at base that a row sees: [low, high).
    int low_of(int row, int base) const {
        const std::int64_t first =
            static_cast<std::int64_t>(token_of(row).position) - task_.window + 1 - base;
        return static_cast<int>(larger<std::int64_t>(0, smaller<std::int64_t>(first, kSplit)));
    }
    int high_of(int row, int base) const {
        return larger(0, smaller(kSplit, token_of(row).position + 1 - base));
    }

    void load_queries() {
        for (int row = 0; row < num_rows_; ++row) {
            const Q* source = static_cast<const Q*>(task_.q) +
                              token_of(row).row * task_.q_token_stride +
                              head_of(row) * task_.q_head_stride;
            for (int d = 0; d < dim_; d += S::W) {
                const int left = task_.head_dim - d;
                S::store(queries_ + activation_offset(row, d / kGroup, num_groups_) + d % kGroup,
                         left <= 0 ? S::zero() : load_upto<S>(source + d, left));
            }
        }
        for (int row = 0; row < ceil_div(num_rows_, kBlockRows) * kBlockRows; ++row) {
            max_[row] = kMinusInfinity;
            sum_[row] = 0.0f;
        }
        std::memset(totals_, 0, static_cast<std::size_t>(num_rows_) * dim_ * sizeof(float));
    }

    void run_split(int split) {
        const int base = split * kSplit;
        int low = kSplit, high = 0;
        for (int row = 0; row < num_rows_; row += heads_per_token_) {
            low = smaller(low, low_of(row, base));
            high = larger(high, high_of(row, base));
        }
        if (low >= high) return;
        packer_.locate(base, high);
        const int first_group = low / kGroup, last_group = ceil_div(high, kGroup);
        packer_.pack_keys(first_group, last_group, keys_);
        packer_.pack_values(first_group, last_group, values_);
        for (int row = 0; row < num_rows_; row += kBlockRows) run_block(split, row);
    }

    void run_block(int split, int first_row) {
        const int base = split * kSplit;
        const int count = smaller(kBlockRows, num_rows_ - first_row);
        int low = kSplit, high = 0;
        for (int r = 0; r < count; ++r) {
            low = smaller(low, low_of(first_row + r, base));
            high = larger(high, high_of(first_row + r, base));
        }
        if (low >= high) return;
        const int first_group = low / kGroup, last_group = ceil_div(high, kGroup);
        const std::size_t query_tile = static_cast<std::size_t>(num_groups_) * kTileRows * kGroup;
        for (int group = first_group; group < last_group; ++group) {
            M::block(queries_ + first_row / kTileRows * query_tile, query_tile,
                     keys_ + static_cast<std::size_t>(group) * num_groups_ * kGroup * kPanel,
                     num_groups_, scores_ + group * kPanel, kSplit, count);
        }
        alignas(64) float max[kBlockRows], sum[kBlockRows];
        for (int r = 0; r < kBlockRows; ++r) {
            max[r] = kMinusInfinity;
            sum[r] = 0.0f;
            if (r < count) {
                softmax(first_row + r, base, r, first_group * kGroup, last_group * kGroup, max[r],
                        sum[r]);
            }
        }
        const std::size_t weight_tile = kSplitGroups * kTileRows * kGroup;
        for (int panel = 0; panel < num_groups_; ++panel) {
            M::block(weights_ + first_group * kTileRows * kGroup, weight_tile,
                     values_ + (panel * kSplitGroups + first_group) * kGroup * kPanel,
                     last_group - first_group, fresh_ + panel * kPanel, dim_, count);
        }
        if (task_.tokens[0].partial >= 0) {
            write_partials(split, first_row, count, max, sum);
        } else {
            fold(first_row, count, max, sum);
        }
    }

    // Scores of one row to weights (exponentials of the difference to the maximum), in elements T.
    void softmax(int row, int base, int r, int begin, int end, float& max, float& sum) {
        const int low = low_of(row, base), high = high_of(row, base);
        if (low >= high) return;
        float* scores = scores_ + r * kSplit;
        for (int c = begin; c < low; ++c) scores[c] = kMinusInfinity;
        for (int c = high; c < end; ++c) scores[c] = kMinusInfinity;
        float factor = task_.scale * kLog2E;
        if (task_.softcap != 0.0f || task_.scale <= 0.0f) {
            transform(scores, begin, end);
            for (int c = begin; c < low; ++c) scores[c] = kMinusInfinity;
            for (int c = high; c < end; ++c) scores[c] = kMinusInfinity;
            factor = 1.0f;
        }
        typename S::Reg top = S::load(scores + begin);
        for (int c = begin + S::W; c < end; c += S::W) top = S::max(top, S::load(scores + c));
        max = S::reduce_max(top) * factor;
        const typename S::Reg scale = S::set1(factor), shift = S::set1(-max);
        typename S::Reg total = S::zero();
        for (int c = begin; c < end; c += S::W) {
            const auto weight = exp2<S>(S::fma(S::load(scores + c), scale, shift));
            total = S::add(total, weight);
            S::store(weights_ + activation_offset(r, c / kGroup, kSplitGroups) + c % kGroup, weight);
        }
        sum = S::reduce_add(total);
    }

    void transform(float* scores, int begin, int end) const {
        for (int c = begin; c < end; c += S::W) {
            auto x = S::mul(S::load(scores + c), S::set1(task_.scale));
            if (task_.softcap != 0.0f) {
                const auto bounded = tanh<S>(S::mul(x, S::set1(1.0f / task_.softcap)));
                x = S::mul(bounded, S::set1(task_.softcap));
            }
            S::store(scores + c, S::mul(x, S::set1(kLog2E)));
        }
    }

    void fold(int first_row, int count, const float* max, const float* sum) {
        alignas(64) float keep[kBlockRows], take[kBlockRows];
        for (int r = 0; r < kBlockRows; r += S::W) {
            Fold<S>::factors(max_ + first_row + r, sum_ + first_row + r, max + r, sum + r, keep + r,
                             take + r);
        }
        for (int r = 0; r < count; ++r) {
            if (max[r] == kMinusInfinity) continue;
            Fold<S>::values(totals_ + (first_row + r) * dim_, fresh_ + r * dim_, keep[r], take[r],
                            dim_);
        }
    }

    void write_partials(int split, int first_row, int count, const float* max, const float* sum) {
        for (int r = 0; r < count; ++r) {
            if (max[r] == kMinusInfinity) continue;
            const int row = first_row + r;
            float* partial = partial_of(task_, token_of(row), split, head_of(row));
            std::memcpy(partial, fresh_ + r * dim_, dim_ * sizeof(float));
            partial[dim_] = max[r];
            partial[dim_ + 1] = sum[r];
        }
    }

    const AttentionTask& task_;
    const int dim_, num_groups_, heads_per_token_, num_rows_;
    std::byte* next_;
    T* queries_;
    float* totals_;
    T* keys_;
    T* values_;
    T* weights_;
    float* scores_;
    float* fresh_;
    float* max_;
    float* sum_;
    SplitPacker<S, C, T> packer_;
};

template <class S, class M>
struct Attention {
    static std::size_t scratch_size(int head_dim) {
        return AttentionRange<S, M, float, float, float>::scratch_size(head_dim);
    }

    static void attend(const AttentionTask& task, void* scratch) {
        const bool half_q = task.q_dtype == DType::bf16, half_kv = task.kv_dtype == DType::bf16;
        if (half_q && half_kv) {
            AttentionRange<S, M, bf16, bf16, bf16>(task, scratch).run();
        } else if (half_q) {
            AttentionRange<S, M, bf16, float, float>(task, scratch).run();
        } else if (half_kv) {
            AttentionRange<S, M, float, bf16, float>(task, scratch).run();
        } else {
            AttentionRange<S, M, float, float, float>(task, scratch).run();
        }
    }

    // Folds the partial results of the task's tokens, in the same way as a task that has all splits.
    static void merge(const AttentionTask& task, void* scratch) {
        const int dim = padded_head_dim(task.head_dim);
        const int group = task.num_heads / task.num_kv_heads;
        auto* total = static_cast<float*>(scratch);
        for (int i = 0; i < task.num_tokens * group; ++i) {
            const QueryToken& token = task.tokens[i / group];
            merge_row(task, token, task.kv_head * group + i % group, total, dim);
        }
    }

  private:
    static void merge_row(const AttentionTask& task, const QueryToken& token, int head, float* total,
                          int dim) {
        alignas(64) float max[S::W], sum[S::W], new_max[S::W], new_sum[S::W], keep[S::W], take[S::W];
        S::store(max, S::set1(kMinusInfinity));
        S::store(sum, S::zero());
        std::memset(total, 0, dim * sizeof(float));
        for (int split = token.first_split; split <= token.position / kSplit; ++split) {
            const float* partial = partial_of(task, token, split, head);
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
