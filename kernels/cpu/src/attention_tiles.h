// Keys and values of a split from a paged cache that is in tiles (kv_tiles.h): read where they lie, or widened.
#pragma once

#include <type_traits>

#include "attention_products.h"
#include "attention_task.h"
#include "fetch_ahead.h"
#include "kv_tiles.h"
#include "widen_tiles.h"

namespace ramet {
namespace {

// Keys and values of a split of one head in elements T, tile by tile.
template <class T>
struct SplitTiles {
    int end = 0;  // of the tiles that hold anything
    const T* keys[kSplitTiles];
    const T* values[kSplitTiles];
    // What is to be fetched while these are read, where `fetches` says that nothing has fetched it.
    const T* keys_ahead[kSplitTiles];
    const T* values_ahead[kSplitTiles];
    bool fetches = false;
    // What keys and values of each position are to be multiplied by, where a cache is of 8 bits.
    const float* key_scales = nullptr;
    const float* value_scales = nullptr;
};

// Cache of elements C, tiles of elements T (C, or wider).
template <class S, class C, class T>
class TileReader {
    static constexpr bool kInt8 = std::is_same_v<C, std::int8_t>;
    static constexpr bool kAsStored = std::is_same_v<C, T>;

  public:
    explicit TileReader(const AttentionTask& task)
        : task_(task),
          layout_(task.num_kv_heads, task.head_dim, task.block_size),
          dim_(task.head_dim),
          tile_bytes_(layout_.tile_size() * sizeof(C)) {}

    // Looks up where the tiles of a range lie, which starts at one: they are to be fetched.
    void locate_next(const CacheRange& range) {
        next_.num_positions = larger(0, range.last - range.first);
        next_.first_kv_head = range.first_kv_head;
        next_.last_kv_head = range.last_kv_head;
        const int tiles_per_block = task_.block_size / kHalf;
        for (int i = 0; i < next_.num_tiles(); ++i) {
            const int tile = range.first / kHalf + i;
            next_.offsets[i] = layout_.offset(range.block_table[tile / tiles_per_block],
                                              tile % tiles_per_block);
        }
    }

    // Goes on to the tiles last looked up: they are the ones to be read.
    void advance() { here_ = next_; }

    // Tiles from `first` to `last`, at most, of a head. Where they are not as they are stored, or `joined`, they go
    // to `keys` and `values`, each where it would be if all lay one after another.
    // What is in tiles of keys past the end means nothing; values past the end are zero.
    void read(int kv_head, int first, int last, bool joined, T* keys, T* values, SplitTiles<T>* out) {
        select_heads(kv_head);
        out->end = smaller(last, here_.num_tiles());
        out->fetches = kAsStored;
        for (int i = first; i < out->end; ++i) {
            const C* key_ahead = ahead(task_.k_cache, i);
            const C* value_ahead = ahead(task_.v_cache, i);
            out->keys[i] = key_tile(i, key_ahead, keys + i * kHalf * dim_);
            out->values[i] = value_tile(i, value_ahead, joined, values + i * kHalf * dim_);
            if constexpr (kAsStored) {
                out->keys_ahead[i] = key_ahead;
                out->values_ahead[i] = value_ahead;
            }
        }
        for (int i = out->end; i < last; ++i) {
            out->keys[i] = out->keys[i - 1];
            if constexpr (kAsStored) out->keys_ahead[i] = out->keys_ahead[i - 1];
            if (joined) std::memset(values + i * kHalf * dim_, 0, kHalf * dim_ * sizeof(T));
            // Weights there are zeros, and what they are multiplied by must be finite for them to stay so.
            if constexpr (kInt8) std::memset(value_scales_ + i * kHalf, 0, kHalf * sizeof(float));
        }
        out->key_scales = key_scales_;
        out->value_scales = value_scales_;
        fetch_others(first, out->end);
    }

  private:
    struct Located {
        int num_positions = 0;
        int first_kv_head = 0, last_kv_head = 0;
        std::int64_t offsets[kSplitTiles];  // of head 0

        int num_tiles() const { return ceil_div(num_positions, kHalf); }
    };

    // The head that is read, and the one that takes its place in what is next.
    void select_heads(int kv_head) {
        head_offset_ = static_cast<std::int64_t>(kv_head) * layout_.head_size();
        const int next_head = smaller(next_.first_kv_head + kv_head - task_.first_kv_head,
                                      next_.last_kv_head - 1);
        next_head_offset_ = static_cast<std::int64_t>(next_head) * layout_.head_size();
    }

    const C* here(const void* cache, int i) const {
        return static_cast<const C*>(cache) + here_.offsets[i] + head_offset_;
    }

    // The tile to be fetched while number i is read: the same one of the next split, if there is one.
    const C* ahead(const void* cache, int i) const {
        if (i >= next_.num_tiles()) return here(cache, i);
        return static_cast<const C*>(cache) + next_.offsets[i] + next_head_offset_;
    }

    // Tiles of the next split without a partner in this one.
    void fetch_others(int first, int last) const {
        for (int i = 0; i < next_.num_tiles(); ++i) {
            if (first <= i && i < last) continue;
            const auto* key = reinterpret_cast<const char*>(ahead(task_.k_cache, i));
            const auto* value = reinterpret_cast<const char*>(ahead(task_.v_cache, i));
            for (int byte = 0; byte < tile_bytes_; byte += kCacheLine) {
                __builtin_prefetch(key + byte, 0, 2);
                __builtin_prefetch(value + byte, 0, 2);
            }
        }
    }

    const T* key_tile(int i, const C* ahead, T* out) {
        const C* tile = here(task_.k_cache, i);
        if constexpr (kAsStored) {
            return tile;
        } else if constexpr (kInt8) {
            for (int d = 0; d < dim_; d += kWordBytes) {
                __builtin_prefetch(ahead + d * kHalf, 0, 2);
                widen_quads<S>(words(tile) + d / kWordBytes * kHalf, kHalf, out + d * kHalf);
            }
            __builtin_prefetch(ahead + dim_ * kHalf, 0, 2);
            std::memcpy(key_scales_ + i * kHalf, tile_scales(tile, dim_), kHalf * sizeof(float));
            return out;
        } else {
            widen_rows<S>(tile, ahead, dim_ / 2, kHalf, out);
            return out;
        }
    }

    const T* value_tile(int i, const C* ahead, bool joined, T* out) {
        const C* tile = here(task_.v_cache, i);
        const int count = smaller(kHalf, here_.num_positions - i * kHalf);
        if constexpr (kAsStored) {
            if (count == kHalf && !joined) return tile;
            copy(tile, ahead, out);
        } else if constexpr (kInt8) {
            widen_values(tile, ahead, out);
            const float* scales = tile_scales(tile, dim_);
            for (int p = 0; p < kHalf; ++p) value_scales_[i * kHalf + p] = p < count ? scales[p] : 0.0f;
        } else {
            widen_rows<S>(tile, ahead, kHalf / 2, dim_, out);
        }
        if (count < kHalf) clear(count, out);
        return out;
    }

    void widen_values(const std::int8_t* tile, const std::int8_t* ahead, T* out) const {
        for (int p = 0; p < kHalf; p += kWordBytes) {
            for (int d = 0; d < dim_; d += kHalf) {
                __builtin_prefetch(ahead + p * dim_ + d * kWordBytes, 0, 2);
                widen_quads<S>(words(tile) + p / kWordBytes * dim_ + d, dim_,
                               out + p * dim_ + d * kPerWord<T>);
            }
        }
        __builtin_prefetch(ahead + kHalf * dim_, 0, 2);
    }

    void copy(const T* tile, const T* ahead, T* out) const {
        for (int at = 0; at < kHalf * dim_; at += kCacheLine / sizeof(T)) {
            __builtin_prefetch(ahead + at, 0, 2);
            std::memcpy(out + at, tile + at, kCacheLine);
        }
    }

    // Values of the positions of a tile from `count` on, at least one before them.
    void clear(int count, T* tile) const {
        constexpr int n = kPerWord<T>;
        const int whole = ceil_div(count, n) * n;
        for (int p = count; p < whole; ++p) {
            for (int d = 0; d < dim_; ++d) tile[p / n * n * dim_ + d * n + p % n] = T{};
        }
        std::memset(tile + whole * dim_, 0, (kHalf - whole) * dim_ * sizeof(T));
    }

    static const std::uint32_t* words(const std::int8_t* tile) {
        return reinterpret_cast<const std::uint32_t*>(tile);
    }

    const AttentionTask& task_;
    const TileLayout<C> layout_;
    const int dim_, tile_bytes_;
    Located here_, next_;
    std::int64_t head_offset_ = 0, next_head_offset_ = 0;
    alignas(64) float key_scales_[kInt8 ? kSplit : 1] = {};
    alignas(64) float value_scales_[kInt8 ? kSplit : 1] = {};
};

}  // namespace
}  // namespace ramet
