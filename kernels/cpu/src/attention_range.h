// One attention task: scores, softmax and weighted values of its rows, split by split.
//
// Source: online softmax as in Dao et al. 2022 (FlashAttention), algorithm 1; base-two exponentials.
#pragma once

#include <climits>
#include <utility>

#include "attention_fold.h"
#include "attention_pack.h"
#include "attention_products.h"
#include "kernel_table.h"

namespace ramet {
namespace {

// Queries of elements Q, cache of elements C, products of elements T.
//
// Rows are taken in blocks of 16: scores lie as [positions][16 rows], so that a vector holds the same
// position of different rows, and no sum runs across a vector.
template <class S, class P, class Q, class C, class T>
class AttentionRange {
  public:
    static std::size_t scratch_size(int head_dim) {
        const std::size_t dim = padded_head_dim(head_dim);
        return kMaxTaskRows * (dim * (sizeof(T) + sizeof(float)) + 2 * sizeof(float)) +
               2 * kSplit * dim * sizeof(T) + kHalf * kSplit * (sizeof(T) + 2 * sizeof(float)) +
               kHalf * kHalf * sizeof(T) * 2 + kHalf * dim * (sizeof(T) + sizeof(float));
    }

    AttentionRange(const AttentionTask& task, void* scratch)
        : task_(task),
          dim_(padded_head_dim(task.head_dim)),
          num_groups_(dim_ / kGroup),
          heads_per_token_(task.num_heads / task.num_kv_heads),
          num_rows_(task.num_tokens * heads_per_token_),
          padded_rows_(ceil_div(num_rows_, kHalf) * kHalf),
          next_(static_cast<std::byte*>(scratch)),
          all_queries_(carve<T>(kMaxTaskRows * dim_)),
          all_totals_(carve<float>(kMaxTaskRows * dim_)),
          all_max_(carve<float>(kMaxTaskRows)),
          all_sum_(carve<float>(kMaxTaskRows)),
          keys_(carve<T>(kSplit * dim_)),
          values_(carve<T>(kSplit * dim_)),
          weights_(carve<T>(kHalf * kSplit)),
          scores_(carve<float>(kHalf * kSplit)),
          next_scores_(carve<float>(kHalf * kSplit)),
          exponentials_(carve<T>(kSquare)),
          fresh_(carve<float>(kHalf * dim_)),
          stage_(carve<T>(kHalf * dim_)),
          packer_(task, stage_),
          prefetch_step_(ceil_div(kGroup, task.last_kv_head - task.first_kv_head)) {}

    void run() {
        scan_rows();
        for (int head = task_.first_kv_head; head < task_.last_kv_head; ++head) {
            select_head(head);
            load_queries();
        }
        P::begin();
        for (int split = task_.first_split; split < task_.last_split; ++split) run_split(split);
        P::end();
        for (int head = task_.first_kv_head; head < task_.last_kv_head; ++head) {
            select_head(head);
            finish();
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
    int head_of(int row) const { return kv_head_ * heads_per_token_ + row % heads_per_token_; }

    // From now on rows are those of this head.
    void select_head(int kv_head) {
        kv_head_ = kv_head;
        const int first_row = (kv_head - task_.first_kv_head) * padded_rows_;
        queries_ = all_queries_ + static_cast<std::size_t>(first_row) * dim_;
        totals_ = all_totals_ + static_cast<std::size_t>(first_row) * dim_;
        max_ = all_max_ + first_row;
        sum_ = all_sum_ + first_row;
        packer_.select_head(kv_head);
    }

    void finish() {
        for (int row = 0; row < num_rows_; ++row) {
            const QueryToken& token = token_of(row);
            if (token.partial < 0) {
                Fold<S>::template finish<Q>(task_, token, head_of(row), max_[row], sum_[row],
                                            totals_ + row * dim_);
            } else if (folds(token)) {
                write_partial(row, 0, totals_ + row * dim_, max_[row], sum_[row]);
            }
        }
    }

    // Whether the task has the first splits of a token, which are folded here.
    bool folds(const QueryToken& token) const { return token.first_split >= task_.first_split; }

    // Columns of the split at base that the query at a position sees: [low, high).
    int low_of(int position, int base) const {
        const std::int64_t first = static_cast<std::int64_t>(position) - task_.window + 1 - base;
        return static_cast<int>(larger<std::int64_t>(0, smaller<std::int64_t>(first, kSplit)));
    }
    static int high_of(int position, int base) {
        return larger(0, smaller(kSplit, position + 1 - base));
    }

    // Rows of a block, and which of a split's columns any of them sees.
    struct Block {
        int first_row, count;
        int low, high;
        bool partly;  // some row does not see all of the split
        bool empty() const { return low >= high; }
        int first_group() const { return low / kGroup; }
        int last_group() const { return ceil_div(high, kGroup); }
    };

    Block block_at(int first_row, int num_rows, int lowest, int highest, int base) const {
        return {first_row, num_rows, low_of(lowest, base), high_of(highest, base),
                low_of(highest, base) > 0 || high_of(lowest, base) < kSplit};
    }

    // The next block from first_row on with a row that sees into the split; empty after the last.
    Block block_from(int first_row, int base) const {
        for (int row = first_row; row < num_rows_; row += kHalf) {
            const Block block = block_at(row, smaller(kHalf, num_rows_ - row), lowest_[row / kHalf],
                                         highest_[row / kHalf], base);
            if (!block.empty()) return block;
        }
        return {num_rows_, 0, 0, 0, false};
    }

    void scan_rows() {
        lowest_all_ = INT_MAX;
        highest_all_ = 0;
        folds_all_ = true;
        for (int row = 0; row < num_rows_; ++row) {
            const QueryToken& token = token_of(row);
            const int block = row / kHalf;
            if (row % kHalf == 0) lowest_[block] = INT_MAX, highest_[block] = 0;
            lowest_[block] = smaller(lowest_[block], token.position);
            highest_[block] = larger(highest_[block], token.position);
            lowest_all_ = smaller(lowest_all_, token.position);
            highest_all_ = larger(highest_all_, token.position);
            folds_all_ = folds_all_ && folds(token);
        }
    }

    void load_queries() {
        for (int first = 0; first < num_rows_; first += kHalf) {
            for (int r = 0; r < kHalf; ++r) stage_query(first + r, stage_ + r * dim_);
            for (int group = 0; group < num_groups_; ++group) {
                pack_query(stage_ + group * kGroup, queries_ + first * dim_ + group * kSquare);
            }
        }
        for (int row = 0; row < padded_rows_; ++row) {
            max_[row] = kMinusInfinity;
            sum_[row] = 0.0f;
        }
        std::memset(totals_, 0, static_cast<std::size_t>(padded_rows_) * dim_ * sizeof(float));
    }

    void stage_query(int row, T* target) const {
        if (row >= num_rows_) {
            std::memset(target, 0, dim_ * sizeof(T));
            return;
        }
        const Q* source = static_cast<const Q*>(task_.q) + token_of(row).row * task_.q_token_stride +
                          head_of(row) * task_.q_head_stride;
        for (int d = 0; d < dim_; d += S::W) {
            const int left = task_.head_dim - d;
            S::store(target + d, left <= 0 ? S::zero() : load_upto<S>(source + d, left));
        }
    }

    void pack_query(const bf16* rows, bf16* out) const { transpose(rows, dim_ / 2, out, kHalf); }
    void pack_query(const float* rows, float* out) const {
        transpose(rows, dim_, out, kHalf);
        transpose(rows + kHalf, dim_, out + kHalf * kHalf, kHalf);
    }

    // 16 x 16 words; strides in words.
    template <class U>
    static void transpose(const U* rows, int stride, U* out, int out_stride) {
        const std::uint32_t* words[kHalf];
        for (int i = 0; i < kHalf; ++i) {
            words[i] = reinterpret_cast<const std::uint32_t*>(rows) + i * stride;
        }
        S::transpose16(words, reinterpret_cast<std::uint32_t*>(out), out_stride);
    }

    void run_split(int split) {
        const int base = split * kSplit;
        const Block all = block_at(0, num_rows_, lowest_all_, highest_all_, base);
        if (all.empty()) return;
        if (next_split_ != split) packer_.locate_next(base, all.high);
        packer_.advance();
        if (split + 1 < task_.last_split) {
            next_split_ = split + 1;
            packer_.locate_next(base + kSplit, high_of(highest_all_, base + kSplit));
        }
        for (int head = task_.first_kv_head; head < task_.last_kv_head; ++head) {
            select_head(head);
            packer_.pack_keys(all.first_group(), all.last_group(), keys_);
            packer_.pack_values(all.first_group(), all.last_group(), values_);
            run_blocks(split);
        }
    }

    void run_blocks(int split) {
        const int base = split * kSplit;
        Block block = block_from(0, base);
        score(block, block.first_group(), block.last_group(), scores_);
        while (!block.empty()) {
            const Block next = block_from(block.first_row + kHalf, base);
            run_block(split, block, next);
            std::swap(scores_, next_scores_);
            block = next;
        }
    }

    void score(const Block& block, int first_group, int last_group, float* scores) const {
        const int first = larger(first_group, block.first_group());
        const int last = smaller(last_group, block.last_group());
        if (first >= last) return;
        P::scores(keys_, queries_ + block.first_row * dim_, num_groups_, 2 * first, 2 * last, scores);
    }

    // Computes the scores of the next block as well.
    void run_block(int split, const Block& block, const Block& next) {
        alignas(64) float max[kHalf], sum[kHalf];
        softmax(block, next, split * kSplit, max, sum);
        P::values(weights_, values_, block.first_group(), block.last_group(), block.count, dim_,
                  fresh_);
        fold(split, block, max, sum);
    }

    static constexpr int kVectors = kHalf / S::W;

    // Scores to weights: exponentials of the difference to the row's maximum. The scores of the next
    // block are computed between them, so that tiles and vectors work at the same time.
    void softmax(const Block& block, const Block& next, int base, float* max, float* sum) {
        const int begin = block.first_group() * kGroup, end = block.last_group() * kGroup;
        float factor = task_.scale * kLog2E;
        if (task_.softcap != 0.0f || task_.scale <= 0.0f) {
            transform(begin, end);
            factor = 1.0f;
        }
        if (block.partly) mask(block.first_row, base, begin, end);
        for (int v = 0; v < kVectors; ++v) maximum(v * S::W, begin, end, factor, max);
        typename S::Reg total[kVectors][kChains];
        for (int v = 0; v < kVectors; ++v) {
            for (int i = 0; i < kChains; ++i) total[v][i] = S::zero();
        }
        score(next, 0, block.first_group(), next_scores_);
        for (int group = block.first_group(); group < block.last_group(); ++group) {
            score(next, group, group + 1, next_scores_);
            packer_.prefetch_some(prefetch_step_);
            exponentials(scores_ + group * kSquare, factor, max, total);
            transpose_weights(weights_ + group * kSquare);
        }
        score(next, block.last_group(), kSplit / kGroup, next_scores_);
        for (int v = 0; v < kVectors; ++v) {
            S::store(sum + v * S::W, S::add(S::add(total[v][0], total[v][1]),
                                            S::add(total[v][2], total[v][3])));
        }
    }

    // Sums and maxima of every fourth position, so that additions need not wait for each other.
    static constexpr int kChains = 4;

    void maximum(int lane, int begin, int end, float factor, float* max) const {
        const float* scores = scores_ + lane;
        typename S::Reg top[kChains];
        for (int i = 0; i < kChains; ++i) top[i] = S::load(scores + (begin + i) * kHalf);
        for (int c = begin + kChains; c < end; c += kChains) {
            for (int i = 0; i < kChains; ++i) {
                top[i] = S::max(top[i], S::load(scores + (c + i) * kHalf));
            }
        }
        const auto all = S::max(S::max(top[0], top[1]), S::max(top[2], top[3]));
        S::store(max + lane, S::mul(all, S::set1(factor)));
    }

    // Of 32 positions, to exponentials_: [pair of positions][16 rows][2], float [position][16 rows].
    void exponentials(const float* scores, float factor, const float* max,
                      typename S::Reg (&total)[kVectors][kChains]) {
        const auto scale = S::set1(factor);
        for (int v = 0; v < kVectors; ++v) {
            // Finite where a row sees nothing, so that the differences are no NaN.
            const auto top = S::max(S::set1(-1e30f), S::load(max + v * S::W));
            const auto shift = S::sub(S::zero(), top);
            for (int c = 0; c < kGroup; c += kChains) {
                typename S::Reg weight[kChains];
                for (int i = 0; i < kChains; ++i) {
                    const auto score = S::load(scores + (c + i) * kHalf + v * S::W);
                    weight[i] = exponential(S::fma(score, scale, shift), T{});
                    total[v][i] = S::add(total[v][i], weight[i]);
                }
                for (int i = 0; i < kChains; i += 2) {
                    store_weights(c + i, v * S::W, weight[i], weight[i + 1], exponentials_);
                }
            }
        }
    }

    static typename S::Reg exponential(typename S::Reg x, bf16) { return exp2_near<S>(x); }
    static typename S::Reg exponential(typename S::Reg x, float) { return exp2<S>(x); }

    static void store_weights(int position, int lane, typename S::Reg even, typename S::Reg odd,
                              bf16* out) {
        S::store_pairs(out + position * kHalf + 2 * lane, even, odd);
    }
    static void store_weights(int position, int lane, typename S::Reg even, typename S::Reg odd,
                              float* out) {
        S::store(out + position * kHalf + lane, even);
        S::store(out + (position + 1) * kHalf + lane, odd);
    }

    // To [16 rows][32 positions].
    void transpose_weights(bf16* out) const { transpose(exponentials_, kHalf, out, kHalf); }
    void transpose_weights(float* out) const {
        transpose(exponentials_, kHalf, out, kGroup);
        transpose(exponentials_ + kHalf * kHalf, kHalf, out + kHalf, kGroup);
    }

    void transform(int begin, int end) {
        for (int i = begin * kHalf; i < end * kHalf; i += S::W) {
            auto x = S::mul(S::load(scores_ + i), S::set1(task_.scale));
            if (task_.softcap != 0.0f) {
                const auto bounded = tanh<S>(S::mul(x, S::set1(1.0f / task_.softcap)));
                x = S::mul(bounded, S::set1(task_.softcap));
            }
            S::store(scores_ + i, S::mul(x, S::set1(kLog2E)));
        }
    }

    // Scores of what a row does not see become -infinity: the smaller of the score and an infinity.
    void mask(int first_row, int base, int begin, int end) {
        alignas(64) float low[kHalf], high[kHalf];
        for (int r = 0; r < kHalf; ++r) {
            const QueryToken& token = token_of(smaller(first_row + r, num_rows_ - 1));
            low[r] = static_cast<float>(low_of(token.position, base)) - 0.5f;
            high[r] = static_cast<float>(high_of(token.position, base)) - 0.5f;
        }
        const auto infinity = S::set1(-kMinusInfinity);
        for (int c = begin; c < end; ++c) {
            const auto column = S::set1(static_cast<float>(c));
            for (int lane = 0; lane < kHalf; lane += S::W) {
                float* score = scores_ + c * kHalf + lane;
                const auto above = S::mul(S::sub(column, S::load(low + lane)), infinity);
                const auto below = S::mul(S::sub(S::load(high + lane), column), infinity);
                S::store(score, S::min(S::min(S::load(score), above), below));
            }
        }
    }

    void fold(int split, const Block& block, const float* max, const float* sum) {
        alignas(64) float keep[kHalf], take[kHalf];
        const int first_row = block.first_row;
        for (int r = 0; r < kHalf; r += S::W) {
            Fold<S>::factors(max_ + first_row + r, sum_ + first_row + r, max + r, sum + r, keep + r,
                             take + r);
        }
        for (int r = 0; r < block.count; ++r) {
            const int row = first_row + r;
            if (folds_all_ || folds(token_of(row))) {
                Fold<S>::values(totals_ + row * dim_, fresh_ + r * dim_, keep[r], take[r], dim_);
            } else if (split <= token_of(row).position / kSplit) {
                const int number = 1 + split - token_of(row).prefix_end;
                write_partial(row, number, fresh_ + r * dim_, max[r], sum[r]);
            }
        }
    }

    void write_partial(int row, int number, const float* values, float max, float sum) const {
        float* partial = partial_of(task_, token_of(row), number, head_of(row));
        std::memcpy(partial, values, dim_ * sizeof(float));
        partial[dim_] = max;
        partial[dim_ + 1] = sum;
    }

    const AttentionTask& task_;
    const int dim_, num_groups_, heads_per_token_, num_rows_, padded_rows_;
    std::byte* next_;
    // Of all heads, padded_rows_ each.
    T* all_queries_;
    float* all_totals_;
    float* all_max_;
    float* all_sum_;
    T* keys_;
    T* values_;
    T* weights_;
    float* scores_;
    float* next_scores_;
    T* exponentials_;
    float* fresh_;
    T* stage_;
    SplitPacker<S, C, T> packer_;
    const int prefetch_step_;  // positions of the next split, so that the first block brings all
    int next_split_ = -1;      // the packer has looked it up
    // The selected head.
    int kv_head_ = 0;
    T* queries_ = nullptr;
    float* totals_ = nullptr;
    float* max_ = nullptr;
    float* sum_ = nullptr;
    // Positions of the rows, of every block and of all.
    int lowest_[kMaxTaskRows / kHalf], highest_[kMaxTaskRows / kHalf];
    int lowest_all_ = 0, highest_all_ = 0;
    bool folds_all_ = true;
};

template <class S, class P>
struct Attention {
    static std::size_t scratch_size(int head_dim) {
        return AttentionRange<S, P, float, float, float>::scratch_size(head_dim);
    }

    static void attend(const AttentionTask& task, void* scratch) {
        const bool half_q = task.q_dtype == DType::bf16, half_kv = task.kv_dtype == DType::bf16;
        if (half_q && half_kv) {
            AttentionRange<S, P, bf16, bf16, bf16>(task, scratch).run();
        } else if (half_q) {
            AttentionRange<S, P, bf16, float, float>(task, scratch).run();
        } else if (half_kv) {
            AttentionRange<S, P, float, bf16, float>(task, scratch).run();
        } else {
            AttentionRange<S, P, float, float, float>(task, scratch).run();
        }
    }
};

}  // namespace
}  // namespace ramet
