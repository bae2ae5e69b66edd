// Keys and values of a split, from the paged cache into the layouts of the products.
#pragma once

#include "attention_products.h"
#include "attention_task.h"
#include "vector_math.h"

namespace ramet {
namespace {

// Cache of elements C, panels of elements T (C, or float).
template <class S, class C, class T>
class SplitPacker {
  public:
    // stage: 16 rows of the padded head dim.
    SplitPacker(const AttentionTask& task, T* stage)
        : task_(task),
          stage_(stage),
          padded_dim_(padded_head_dim(task.head_dim)),
          staged_(sizeof(C) != sizeof(T) || task.head_dim != padded_dim_) {}

    // Looks up where positions base ... base + count - 1 lie; theirs are the rows to prefetch.
    void locate_next(int base, int count) {
        next_.count = count;
        next_.num_prefetched = 0;
        int column = base / task_.block_size, offset = base % task_.block_size;
        for (int i = 0; i < count; ++i) {
            const std::int64_t slot =
                static_cast<std::int64_t>(task_.block_table[column]) * task_.block_size + offset;
            next_.offsets[i] = slot * task_.num_kv_heads * task_.head_dim;
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
        const std::size_t first = task_.first_kv_head * task_.head_dim * sizeof(C);
        const std::size_t last = task_.last_kv_head * task_.head_dim * sizeof(C);
        const int end = smaller(next_.num_prefetched + num_positions, next_.count);
        for (int i = next_.num_prefetched; i < end; ++i) {
            const auto* k = static_cast<const char*>(task_.k_cache) + next_.offsets[i] * sizeof(C);
            const auto* v = static_cast<const char*>(task_.v_cache) + next_.offsets[i] * sizeof(C);
            for (std::size_t byte = first; byte < last; byte += 64) {
                __builtin_prefetch(k + byte, 0, 2);
                __builtin_prefetch(v + byte, 0, 2);
            }
        }
        next_.num_prefetched = end;
    }

    // The head whose keys and values are packed from now on.
    void select_head(int kv_head) { head_offset_ = kv_head * task_.head_dim; }

    // [16 positions each][group of dims][32 x 16]. Positions past the end get the last one's, as good as any.
    void pack_keys(int first_group, int last_group, T* out) {
        const int end = smaller(last_group * kGroup, here_.count);
        const int num_groups = padded_dim_ / kGroup;
        for (int position = first_group * kGroup; position < end; position += kHalf) {
            prefetch_some();
            const T* rows[kHalf];
            for (int i = 0; i < kHalf; ++i) {
                rows[i] = row(task_.k_cache, here_.offsets[smaller(position + i, end - 1)], i);
            }
            T* target = out + position / kHalf * kSquare * num_groups;
            for (int group = 0; group < num_groups; ++group) {
                turn(rows, group * kGroup, target + group * kSquare);
            }
        }
    }

    // [group of positions][16 dims each][32 x 16]. Positions past the end are zero.
    void pack_values(int first_group, int last_group, T* out) {
        with_num_groups([&](auto groups) {
            const int num_groups = groups.count ? groups.count : padded_dim_ / kGroup;
            for (int position = first_group * kGroup; position < last_group * kGroup; position += 2) {
                if (position % kHalf == 0) prefetch_some();
                const T* a = value_row(position, 0);
                const T* b = value_row(position + 1, 1);
                T* target = out + position / kGroup * 2 * kSquare * num_groups +
                            position % kGroup * kHalf;
                for (int half = 0; half < 2 * num_groups; ++half) {
                    pack_pair(a + half * kHalf, b + half * kHalf, target + half * kSquare);
                }
            }
        });
    }

  private:
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

    const T* value_row(int position, int i) {
        if (position < here_.count) return row(task_.v_cache, here_.offsets[position], i);
        T* zeros = stage_ + i * padded_dim_;
        std::memset(zeros, 0, padded_dim_ * sizeof(T));
        return zeros;
    }

    const T* row(const void* cache, std::int64_t offset, int i) {
        const C* source = static_cast<const C*>(cache) + offset + head_offset_;
        return staged_ ? stage(source, i) : as_is(source);
    }

    static const T* as_is(const C* source) {
        return reinterpret_cast<const T*>(source);  // only reached where C is T
    }

    const T* stage(const C* source, int i) {
        T* target = stage_ + i * padded_dim_;
        for (int d = 0; d < padded_dim_; d += S::W) {
            const int left = task_.head_dim - d;
            S::store(target + d, left <= 0 ? S::zero() : load_upto<S>(source + d, left));
        }
        return target;
    }

    // 16 rows of 32 elements from `first` on, to squares.
    static void turn(const bf16* const (&rows)[kHalf], int first, bf16* out) {
        turn_words(rows, first, out);
    }
    static void turn(const float* const (&rows)[kHalf], int first, float* out) {
        turn_words(rows, first, out);
        turn_words(rows, first + kHalf, out + kHalf * kHalf);
    }

    static void turn_words(const T* const (&rows)[kHalf], int first, T* out) {
        const std::uint32_t* words[kHalf];
        for (int i = 0; i < kHalf; ++i) {
            words[i] = reinterpret_cast<const std::uint32_t*>(rows[i] + first);
        }
        S::transpose16(words, reinterpret_cast<std::uint32_t*>(out));
    }

    static void pack_pair(const bf16* a, const bf16* b, bf16* out) { S::interleave16(a, b, out); }

    static void pack_pair(const float* a, const float* b, float* out) {
        std::memcpy(out, a, kHalf * sizeof(float));
        std::memcpy(out + kHalf, b, kHalf * sizeof(float));
    }

    const AttentionTask& task_;
    T* stage_;
    const int padded_dim_;
    const bool staged_;
    struct Positions {
        int count = 0, num_prefetched = 0;
        std::int64_t offsets[kSplit];
    };
    Positions here_, next_;
    int head_offset_ = 0;
};

}  // namespace
}  // namespace ramet
