// Keys and values of a split, from a paged cache of rows into the tiles of the products.
#pragma once

#include <type_traits>

#include "attention_products.h"
#include "attention_task.h"
#include "attention_tiles.h"
#include "int8_row.h"
#include "vector_math.h"
#include "widen_tiles.h"

namespace ramet {
namespace {

// Cache of elements C, tiles of elements T (C, or float). Of a cache of 8 bits the integers are packed, which
// are exact in any T, and their scales are left to scores and weights: few beside keys and values.
template <class S, class C, class T>
class SplitPacker {
    static constexpr bool kInt8 = std::is_same_v<C, std::int8_t>;
    // What rows are packed from.
    using Row = std::conditional_t<kInt8, C, T>;
    static constexpr int kQuad = 4;

  public:
    // stage: 16 rows of the padded head dim.
    SplitPacker(const AttentionTask& task, T* stage)
        : task_(task),
          stage_(reinterpret_cast<Row*>(stage)),
          padded_dim_(padded_head_dim(task.head_dim)),
          // Bytes are turned by 64.
          staged_dim_(kInt8 ? ceil_div(padded_dim_, kQuad * kHalf) * kQuad * kHalf : padded_dim_),
          row_size_(row_size(static_cast<const C*>(nullptr), task.head_dim)),
          staged_(sizeof(C) != sizeof(Row) || task.head_dim != staged_dim_) {}

    // Looks up where the positions of a range lie; theirs are the rows to prefetch.
    void locate_next(const CacheRange& range) {
        next_.count = larger(0, range.last - range.first);
        next_.num_prefetched = 0;
        next_.first_byte = range.first_kv_head * row_size_ * sizeof(C);
        next_.last_byte = range.last_kv_head * row_size_ * sizeof(C);
        int column = range.first / task_.block_size, offset = range.first % task_.block_size;
        for (int i = 0; i < next_.count; ++i) {
            const std::int64_t slot =
                static_cast<std::int64_t>(range.block_table[column]) * task_.block_size + offset;
            next_.offsets[i] = slot * task_.num_kv_heads * row_size_;
            if (++offset == task_.block_size) offset = 0, ++column;
        }
    }

    // Goes on to the positions last looked up: they are the ones to be packed.
    void advance() { here_ = next_; }

    // Brings rows of some more of the positions looked up, of the task's heads, nearer: all of them while
    // the heads of one split are packed. In small portions, as a processor stops at the first one for
    // which it has no buffer free.
    void prefetch_some() {
        constexpr int kPortions = 2 * kSplit / kHalf;
        const int num_positions =
            ceil_div(kSplit, kPortions * (task_.last_kv_head - task_.first_kv_head));
        const int end = smaller(next_.num_prefetched + num_positions, next_.count);
        for (int i = next_.num_prefetched; i < end; ++i) {
            const auto* k = static_cast<const char*>(task_.k_cache) + next_.offsets[i] * sizeof(C);
            const auto* v = static_cast<const char*>(task_.v_cache) + next_.offsets[i] * sizeof(C);
            for (std::size_t byte = next_.first_byte; byte < next_.last_byte; byte += 64) {
                __builtin_prefetch(k + byte, 0, 2);
                __builtin_prefetch(v + byte, 0, 2);
            }
        }
        next_.num_prefetched = end;
    }

    // Tiles from `first` to `last`, at most, of a head, to where they are when all lie one after another. What
    // is in tiles of keys past the end means nothing; values past the end are zero. They are always joined.
    void read(int kv_head, int first, int last, bool, T* keys, T* values, SplitTiles<T>* out) {
        head_offset_ = kv_head * row_size_;
        pack_keys(first, last, keys);
        pack_values(first, last, values);
        out->end = last;
        for (int i = first; i < last; ++i) {
            out->keys[i] = keys + i * kHalf * padded_dim_;
            out->values[i] = values + i * kHalf * padded_dim_;
        }
        out->fetches = false;
        out->key_scales = key_scales_;
        out->value_scales = value_scales_;
    }

  private:
    // Tiles of keys, one after another. Positions past the end get the last one's, as good as any.
    void pack_keys(int first_tile, int last_tile, T* out) {
        const int end = smaller(last_tile * kHalf, here_.count);
        for (int position = first_tile * kHalf; position < end; position += kHalf) {
            prefetch_some();
            const Row* rows[kHalf];
            for (int i = 0; i < kHalf; ++i) {
                const C* source = at(task_.k_cache, smaller(position + i, end - 1));
                if constexpr (kInt8) key_scales_[position + i] = scale_of(source);
                rows[i] = row(source, i);
            }
            turn(rows, out + position * padded_dim_);
        }
    }

    // Tiles of values, one after another. Positions past the end are zero.
    void pack_values(int first_tile, int last_tile, T* out) {
        with_num_groups([&](auto groups) {
            const int num_groups = groups.count ? groups.count : padded_dim_ / kGroup;
            for (int position = first_tile * kHalf; position < last_tile * kHalf; position += 2) {
                if (position % kHalf == 0) prefetch_some();
                const Row* a = value_row(position, 0);
                const Row* b = value_row(position + 1, 1);
                const int dim = num_groups * kGroup;
                T* target = out + position * dim;
                for (int d = 0; d < dim; d += kHalf) pack_pair(a, b, d, dim, target);
            }
        });
    }

    // Groups of the head dim, where the compiler may know how many; 0 where it may not.
    template <int N>
    struct Groups {
        static constexpr int count = N;
    };

    template <class F>
    void with_num_groups(const F& f) const {
        switch (padded_dim_ / kGroup) {
            case 2: return f(Groups<2>{});
            case 4: return f(Groups<4>{});
            default: return f(Groups<0>{});
        }
    }

    const C* at(const void* cache, int position) const {
        return static_cast<const C*>(cache) + here_.offsets[position] + head_offset_;
    }

    float scale_of(const C* source) const { return int8_row_scale(source, task_.head_dim); }

    const Row* value_row(int position, int i) {
        if (position < here_.count) {
            const C* source = at(task_.v_cache, position);
            if constexpr (kInt8) value_scales_[position] = scale_of(source);
            return row(source, i);
        }
        if constexpr (kInt8) value_scales_[position] = 0.0f;
        Row* zeros = stage_ + i * staged_dim_;
        std::memset(zeros, 0, staged_dim_ * sizeof(Row));
        return zeros;
    }

    const Row* row(const C* source, int i) {
        return staged_ ? stage(source, i) : as_is(source);
    }

    static const Row* as_is(const C* source) {
        return reinterpret_cast<const Row*>(source);  // only reached where C is Row
    }

    const Row* stage(const C* source, int i) {
        Row* target = stage_ + i * staged_dim_;
        if constexpr (kInt8) {
            std::memcpy(target, source, task_.head_dim);
            std::memset(target + task_.head_dim, 0, staged_dim_ - task_.head_dim);
        } else {
            for (int d = 0; d < padded_dim_; d += S::W) {
                const int left = task_.head_dim - d;
                S::store(target + d, left <= 0 ? S::zero() : load_upto<S>(source + d, left));
            }
        }
        return target;
    }

    // 16 rows, to a tile.
    void turn(const bf16* const (&rows)[kHalf], bf16* out) const {
        for (int d = 0; d < padded_dim_; d += kGroup) turn_words(rows, d, out + d * kHalf);
    }
    void turn(const float* const (&rows)[kHalf], float* out) const {
        for (int d = 0; d < padded_dim_; d += kHalf) turn_words(rows, d, out + d * kHalf);
    }
    // Four dims of a position are a word: turned together, then spread.
    void turn(const std::int8_t* const (&rows)[kHalf], T* out) const {
        for (int d = 0; d < padded_dim_; d += kQuad * kHalf) {
            alignas(64) std::uint32_t quads[kHalf * kHalf];
            turn_words(rows, d, quads);
            const int num_quads = smaller(kHalf, (padded_dim_ - d) / kQuad);
            for (int quad = 0; quad < num_quads; ++quad) {
                widen_quads<S>(quads + quad * kHalf, kHalf, out + (d + quad * kQuad) * kHalf);
            }
        }
    }

    template <class U>
    static void turn_words(const Row* const (&rows)[kHalf], int first, U* out) {
        const std::uint32_t* words[kHalf];
        for (int i = 0; i < kHalf; ++i) {
            words[i] = reinterpret_cast<const std::uint32_t*>(rows[i] + first);
        }
        S::transpose16(words, reinterpret_cast<std::uint32_t*>(out));
    }

    // 16 dims of two positions, from `first` on, to the rows of values of head dim `dim`.
    static void pack_pair(const bf16* a, const bf16* b, int first, int, bf16* out) {
        S::interleave16(a + first, b + first, out + 2 * first);
    }

    static void pack_pair(const std::int8_t* a, const std::int8_t* b, int first, int, bf16* out) {
        for (int i = first; i < first + kHalf; i += S::W) {
            S::store_exact_pairs(out + 2 * i, S::load(a + i), S::load(b + i));
        }
    }

    static void pack_pair(const std::int8_t* a, const std::int8_t* b, int first, int dim, float* out) {
        for (int i = first; i < first + kHalf; i += S::W) {
            S::store(out + i, S::load(a + i));
            S::store(out + dim + i, S::load(b + i));
        }
    }

    static void pack_pair(const float* a, const float* b, int first, int dim, float* out) {
        std::memcpy(out + first, a + first, kHalf * sizeof(float));
        std::memcpy(out + dim + first, b + first, kHalf * sizeof(float));
    }

    const AttentionTask& task_;
    Row* stage_;
    const int padded_dim_, staged_dim_, row_size_;
    const bool staged_;
    struct Positions {
        int count = 0, num_prefetched = 0;
        std::size_t first_byte = 0, last_byte = 0;  // of a position, of the heads
        std::int64_t offsets[kSplit];
    };
    Positions here_, next_;
    alignas(64) float key_scales_[kInt8 ? kSplit : 1];
    alignas(64) float value_scales_[kInt8 ? kSplit : 1];
    int head_offset_ = 0;
};

}  // namespace
}  // namespace ramet
