// One attention task: scores, softmax and weighted values of its rows, split by split.
//
// Source: online softmax as in Dao et al. 2022 (FlashAttention), algorithm 1; base-two exponentials.
#pragma once

#include <climits>
#include <utility>

#include "attention_fold.h"
#include "attention_pack.h"
#include "attention_products.h"
#include "attention_tiles.h"
#include "kernel_table.h"

namespace ramet {
namespace {

// Queries of elements Q, cache of elements C, products of elements T.
//
// Rows are taken in blocks: keys and values of a split are made ready once for all of them. Scores and weights
// lie as [row][position], so that the work is that of the rows which there are.
template <class S, class P, class Q, class C, class T>
class AttentionRange {
    using A = typename P::template Activation<T>;
    static constexpr int kBlock = P::kBlockRows;
    // Rows whose weights are made together: so that the steps of one fill the waits of another, as far as there are
    // registers.
    static constexpr int kRowsAtOnce = S::W == 16 ? 4 : 1;
    static constexpr bool kInt8 = std::is_same_v<C, std::int8_t>;
    // Keys and values may be widened for many rows.
    static constexpr bool kMayWiden = sizeof(A) != sizeof(T);

  public:
    static std::size_t scratch_size(int head_dim) {
        const std::size_t dim = padded_head_dim(head_dim);
        return kMaxRows * (dim * (sizeof(A) + sizeof(float)) + 2 * sizeof(float)) +
               2 * kSplit * dim * (sizeof(T) + (kMayWiden ? sizeof(A) : 0)) +
               kBlock * kSplit * (sizeof(A) + 2 * sizeof(float)) +
               kBlock * dim * sizeof(float) + kHalf * dim * sizeof(T);
    }

    AttentionRange(const AttentionTask& task, void* scratch)
        : task_(task),
          dim_(padded_head_dim(task.head_dim)),
          num_groups_(dim_ / kGroup),
          heads_per_token_(task.num_heads / task.num_kv_heads),
          num_rows_(task.num_tokens * heads_per_token_),
          padded_rows_(ceil_div(num_rows_, kHalf) * kHalf),
          plain_scores_(task.softcap == 0.0f && task.scale > 0.0f),
          next_(static_cast<std::byte*>(scratch)),
          all_queries_(carve<A>(kMaxRows * dim_)),
          all_totals_(carve<float>(kMaxRows * dim_)),
          all_max_(carve<float>(kMaxRows)),
          all_sum_(carve<float>(kMaxRows)),
          keys_(carve<T>(kSplit * dim_)),
          values_(carve<T>(kSplit * dim_)),
          wide_keys_(carve<A>(kMayWiden ? kSplit * dim_ : 0)),
          wide_values_(carve<A>(kMayWiden ? kSplit * dim_ : 0)),
          weights_(carve<A>(kBlock * kSplit)),
          scores_(carve<float>(kBlock * kSplit)),
          next_scores_(carve<float>(kBlock * kSplit)),
          fresh_(carve<float>(kBlock * dim_)),
          in_tiles_(in_tiles(task.head_dim, task.block_size)),
          packer_(task, carve<T>(kHalf * dim_)),
          reader_(task, in_tiles_ ? range_of(task) : CacheRange{}) {}

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
    // A block may reach past the last row.
    static constexpr int kMaxRows = kMaxTaskRows + kBlock;

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
        for (int row = first_row; row < num_rows_; row += kBlock) {
            const Block block = block_at(row, smaller(kBlock, num_rows_ - row),
                                         lowest_[row / kBlock], highest_[row / kBlock], base);
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
            const int block = row / kBlock;
            if (row % kBlock == 0) lowest_[block] = INT_MAX, highest_[block] = 0;
            lowest_[block] = smaller(lowest_[block], token.position);
            highest_[block] = larger(highest_[block], token.position);
            lowest_all_ = smaller(lowest_all_, token.position);
            highest_all_ = larger(highest_all_, token.position);
            folds_all_ = folds_all_ && folds(token);
        }
    }

    void load_queries() {
        for (int row = 0; row < num_rows_; ++row) load_query(row, queries_ + row * dim_);
        const std::size_t num_padding = padded_rows_ - num_rows_;
        std::memset(queries_ + num_rows_ * dim_, 0, num_padding * dim_ * sizeof(A));
        for (int row = 0; row < padded_rows_; ++row) {
            max_[row] = kMinusInfinity;
            sum_[row] = 0.0f;
        }
        std::memset(totals_, 0, static_cast<std::size_t>(num_rows_) * dim_ * sizeof(float));
    }

    void load_query(int row, A* target) const {
        const Q* source = static_cast<const Q*>(task_.q) + token_of(row).row * task_.q_token_stride +
                          head_of(row) * task_.q_head_stride;
        for (int d = 0; d < dim_; d += S::W) {
            const int left = task_.head_dim - d;
            S::store(target + d, left <= 0 ? S::zero() : load_upto<S>(source + d, left));
        }
    }

    void run_split(int split) {
        const int base = split * kSplit;
        const Block all = block_at(0, num_rows_, lowest_all_, highest_all_, base);
        if (all.empty()) return;
        const CacheRange here = own_range(base, all.high);
        if (in_tiles_) {
            reader_.select(here);
        } else {
            locate(split, here);
        }
        for (int head = task_.first_kv_head; head < task_.last_kv_head; ++head) {
            select_head(head);
            read(all);
            widen(all);
            run_blocks(split);
        }
    }

    CacheRange own_range(int base, int count) const {
        return {task_.block_table, base, base + count, task_.first_kv_head, task_.last_kv_head};
    }

    void locate(int split, const CacheRange& here) {
        if (next_split_ != split) packer_.locate_next(here);
        packer_.advance();
        next_split_ = split + 1;
        if (next_split_ < task_.last_split) {
            const int base = next_split_ * kSplit;
            packer_.locate_next(own_range(base, high_of(highest_all_, base)));
        } else {
            CacheRange range = task_.following;
            range.last = smaller(range.last, range.first + kSplit);
            packer_.locate_next(range);
        }
    }

    template <class F>
    void with_source(const F& f) {
        if (in_tiles_) return f(reader_);
        f(packer_);
    }

    // Keys and values of the selected head that any row sees.
    void read(const Block& all) {
        const int first = 2 * all.first_group(), last = 2 * all.last_group();
        with_source([&](auto& source) {
            source.read(kv_head_, first, last, P::template kJoinsValues<T>, keys_, values_, &tiles_);
        });
    }

    void widen(const Block& all) {
        if constexpr (kMayWiden) {
            if (!P::template widens<T>(num_rows_)) return;
            for (int i = 2 * all.first_group(); i < tiles_.end; ++i) {
                A* keys = wide_keys_ + i * kHalf * dim_;
                A* values = wide_values_ + i * kHalf * dim_;
                widen_rows<S>(tiles_.keys[i], ahead(tiles_.keys, tiles_.keys_ahead)[i], dim_ / 2, kHalf, keys);
                widen_rows<S>(tiles_.values[i], ahead(tiles_.values, tiles_.values_ahead)[i], kHalf / 2, dim_,
                              values);
                wide_.keys[i] = keys;
                wide_.values[i] = values;
            }
            if (tiles_.end % 2) wide_.keys[tiles_.end] = wide_.keys[tiles_.end - 1];
        }
    }

    const T* const* ahead(const T* const* tiles, const T* const* tiles_ahead) const {
        return tiles_.fetches ? tiles_ahead : tiles;
    }

    // f(keys, values), in the form that the products take for so many rows.
    template <class F>
    void with_panels(bool fetch, const F& f) const {
        if constexpr (kMayWiden) {
            if (P::template widens<T>(num_rows_)) {
                return f(Tiles<A>{wide_.keys, nullptr}, Tiles<A>{wide_.values, nullptr});
            }
        }
        fetch = fetch && tiles_.fetches;
        f(Tiles<T>{tiles_.keys, fetch ? tiles_.keys_ahead : nullptr},
          Tiles<T>{tiles_.values, fetch ? tiles_.values_ahead : nullptr});
    }

    // The scores of the next block are computed while the vectors work on one block's. The first block's
    // products fetch what is read next.
    void run_blocks(int split) {
        const int base = split * kSplit;
        Block block = block_from(0, base);
        bool fetch = true;
        score(block, block.first_group(), block.last_group(), fetch, scores_);
        while (!block.empty()) {
            const Block next = block_from(block.first_row + kBlock, base);
            alignas(64) float max[kBlock] = {}, sum[kBlock] = {};
            weigh(block, next, base, max, sum);
            with_panels(fetch, [&](const auto&, const auto& values) {
                P::values(weights(), values, 2 * block.first_group(),
                          smaller(2 * block.last_group(), tiles_.end), block.count, dim_, fresh_);
            });
            fetch = false;
            fold(split, block, max, sum);
            std::swap(scores_, next_scores_);
            block = next;
        }
    }

    void score(const Block& block, int first_group, int last_group, bool fetch, float* scores) const {
        const int first = larger(first_group, block.first_group());
        const int last = smaller(last_group, block.last_group());
        if (first >= last) return;
        with_panels(fetch, [&](const auto& keys, const auto&) {
            P::scores(queries_ + block.first_row * dim_, keys, num_groups_, block.count, 2 * first,
                      2 * last, scores);
        });
    }

    // In the scores' place where they are as wide.
    A* weights() {
        if constexpr (std::is_same_v<A, float>) {
            return scores_;
        } else {
            return weights_;
        }
    }

    // Scores to weights, maxima and sums. A group of the next block's scores follows every few rows, so
    // that tiles and vectors work at the same time.
    void weigh(const Block& block, const Block& next, int base, float* max, float* sum) {
        const int begin = block.first_group() * kGroup, end = block.last_group() * kGroup;
        constexpr int kNumGroups = kSplit / kGroup, kRowsPerGroup = kBlock / kNumGroups;
        for (int r = 0; r < block.count; r += kRowsAtOnce) {
            if (r % kRowsPerGroup == 0) {
                score(next, r / kRowsPerGroup, r / kRowsPerGroup + 1, false, next_scores_);
            }
            weigh_upto<kRowsAtOnce>(block, r, base, begin, end, max, sum);
        }
        score(next, ceil_div(block.count, kRowsPerGroup), kNumGroups, false, next_scores_);
    }

    // Rows of the block from r on, at most N.
    template <int N>
    void weigh_upto(const Block& block, int r, int base, int begin, int end, float* max, float* sum) {
        if constexpr (N > 1) {
            if (block.count - r < N) return weigh_upto<N - 1>(block, r, base, begin, end, max, sum);
        }
        weigh_rows<N>(block, r, base, begin, end, max + r, sum + r);
    }

    template <int N>
    void weigh_rows(const Block& block, int first, int base, int begin, int end, float* max,
                    float* sum) {
        using Softmax = RowSoftmax<S, T>;
        float* scores = scores_ + first * kSplit;
        const float factor = plain_scores_ ? task_.scale * kLog2E : 1.0f;
        for (int r = 0; r < N; ++r) {
            float* row = scores + r * kSplit;
            if constexpr (kInt8) Softmax::multiply(row, begin, end, tiles_.key_scales);
            if (!plain_scores_) Softmax::transform(row, begin, end, task_.scale, task_.softcap);
            if (!block.partly) continue;
            const int position = token_of(block.first_row + first + r).position;
            Softmax::mask(row, begin, end, low_of(position, base), high_of(position, base));
        }
        Softmax::template maxima<N>(scores, begin, end, max);
        for (int r = 0; r < N; ++r) max[r] *= factor;
        Softmax::template exponentials<kInt8, N>(scores, begin, end, factor, max, tiles_.value_scales,
                                                 weights() + first * kSplit, sum);
    }

    void fold(int split, const Block& block, const float* max, const float* sum) {
        alignas(64) float keep[kBlock], take[kBlock];
        const int first_row = block.first_row;
        for (int r = 0; r < block.count; r += S::W) {
            Fold<S>::factors(max_ + first_row + r, sum_ + first_row + r, max + r, sum + r, keep + r,
                             take + r);
        }
        if (folds_all_) {
            Fold<S>::rows(totals_ + first_row * dim_, fresh_, keep, take, block.count, dim_);
            return;
        }
        for (int r = 0; r < block.count; ++r) {
            const int row = first_row + r;
            if (folds(token_of(row))) {
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
    const bool plain_scores_;  // times a positive scale, nothing else
    std::byte* next_;
    // Of all heads, padded_rows_ each.
    A* all_queries_;
    float* all_totals_;
    float* all_max_;
    float* all_sum_;
    T* keys_;
    T* values_;
    A* wide_keys_;
    A* wide_values_;
    A* weights_;
    float* scores_;
    float* next_scores_;
    float* fresh_;
    const bool in_tiles_;
    // One of them reads the cache.
    SplitPacker<S, C, T> packer_;
    TileReader<S, C, T> reader_;
    SplitTiles<T> tiles_;
    SplitTiles<A> wide_;
    int next_split_ = -1;      // looked up by the packer
    // The selected head.
    int kv_head_ = 0;
    A* queries_ = nullptr;
    float* totals_ = nullptr;
    float* max_ = nullptr;
    float* sum_ = nullptr;
    // Positions of the rows, of every block and of all.
    int lowest_[kMaxRows / kBlock + 1], highest_[kMaxRows / kBlock + 1];
    int lowest_all_ = 0, highest_all_ = 0;
    bool folds_all_ = true;
};

template <class S, class P>
struct Attention {
    static std::size_t scratch_size(int head_dim) {
        return larger(AttentionRange<S, P, float, float, float>::scratch_size(head_dim),
                      AttentionRange<S, P, bf16, bf16, bf16>::scratch_size(head_dim));
    }

    static void attend(const AttentionTask& task, void* scratch) {
        if (task.q_dtype == DType::bf16) {
            attend_of<bf16>(task, scratch);
        } else {
            attend_of<float>(task, scratch);
        }
    }

  private:
    // Queries of elements Q; what is not float32 is multiplied in their dtype.
    template <class Q>
    static void attend_of(const AttentionTask& task, void* scratch) {
        switch (task.kv_dtype) {
            case DType::bf16: return AttentionRange<S, P, Q, bf16, Q>(task, scratch).run();
            case DType::i8: return AttentionRange<S, P, Q, std::int8_t, Q>(task, scratch).run();
            default: return AttentionRange<S, P, Q, float, float>(task, scratch).run();
        }
    }
};

}  // namespace
}  // namespace ramet
