// Keys and values of a split, from the paged cache into the panels of the matrix microkernel.
#pragma once

#include "attention_task.h"
#include "vector_math.h"

namespace ramet {
namespace {

constexpr int kSplitGroups = kSplit / kGroup;

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

    // Looks up where positions base ... base + count - 1 lie. To be called first.
    void locate(int base, int count) {
        count_ = count;
        int column = base / task_.block_size, offset = base % task_.block_size;
        for (int i = 0; i < count; ++i) {
            const std::int64_t slot =
                static_cast<std::int64_t>(task_.block_table[column]) * task_.block_size + offset;
            offsets_[i] = (slot * task_.num_kv_heads + task_.kv_head) * task_.head_dim;
            if (++offset == task_.block_size) offset = 0, ++column;
        }
    }

    // Panels of 32 positions; the reduced dimension is the head's. Positions past the end repeat the last:
    // their scores are masked.
    void pack_keys(int first_group, int last_group, T* out) {
        const int num_groups = padded_dim_ / kGroup;
        for (int half = 2 * first_group; half < 2 * last_group; ++half) {
            const T* rows[kHalf];
            for (int i = 0; i < kHalf; ++i) {
                const int position = smaller(half * kHalf + i, count_ - 1);
                rows[i] = row(static_cast<const C*>(task_.k_cache) + offsets_[position], i);
            }
            T* panel = out + static_cast<std::size_t>(half / 2) * num_groups * kGroup * kPanel;
            for (int group = 0; group < num_groups; ++group) {
                pack_square(rows, group * kGroup, half % 2, panel + group * kGroup * kPanel);
            }
        }
    }

    // Panels of 32 dims; the reduced dimension is the position. Positions past the end are zero.
    void pack_values(int first_group, int last_group, T* out) {
        const int num_panels = padded_dim_ / kPanel;
        for (int position = first_group * kGroup; position < last_group * kGroup; position += 2) {
            const T* rows[2];
            for (int i = 0; i < 2; ++i) rows[i] = value_row(position + i, i);
            T* group = out + position / kGroup * kGroup * kPanel;
            for (int panel = 0; panel < num_panels; ++panel) {
                pack_pair(rows[0] + panel * kPanel, rows[1] + panel * kPanel, position % kGroup,
                          group + panel * kSplitGroups * kGroup * kPanel);
            }
        }
    }

  private:
    const T* value_row(int position, int i) {
        if (position < count_) {
            return row(static_cast<const C*>(task_.v_cache) + offsets_[position], i);
        }
        T* zeros = stage_ + i * padded_dim_;
        std::memset(zeros, 0, padded_dim_ * sizeof(T));
        return zeros;
    }

    const T* row(const C* source, int i) { return staged_ ? stage(source, i) : as_is(source); }

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

    static void pack_square(const bf16* const rows[kHalf], int first, int half, bf16* out) {
        const std::uint32_t* words[kHalf];
        for (int i = 0; i < kHalf; ++i) {
            words[i] = reinterpret_cast<const std::uint32_t*>(rows[i] + first);
        }
        S::transpose16(words, reinterpret_cast<std::uint32_t*>(out + half * kGroup * kHalf), kHalf);
    }

    static void pack_square(const float* const rows[kHalf], int first, int half, float* out) {
        for (int part = 0; part < 2; ++part) {
            const std::uint32_t* words[kHalf];
            for (int i = 0; i < kHalf; ++i) {
                words[i] = reinterpret_cast<const std::uint32_t*>(rows[i] + first + part * kHalf);
            }
            S::transpose16(words,
                           reinterpret_cast<std::uint32_t*>(out + part * kHalf * kPanel) +
                               half * kHalf,
                           kPanel);
        }
    }

    static void pack_pair(const bf16* a, const bf16* b, int position, bf16* out) {
        for (int half = 0; half < 2; ++half) {
            S::interleave16(a + half * kHalf, b + half * kHalf,
                            out + half * kGroup * kHalf + position * kHalf);
        }
    }

    static void pack_pair(const float* a, const float* b, int position, float* out) {
        std::memcpy(out + position * kPanel, a, kPanel * sizeof(float));
        std::memcpy(out + (position + 1) * kPanel, b, kPanel * sizeof(float));
    }

    const AttentionTask& task_;
    T* stage_;
    const int padded_dim_;
    const bool staged_;
    int count_ = 0;
    std::int64_t offsets_[kSplit];
};

}  // namespace
}  // namespace ramet
