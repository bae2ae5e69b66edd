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

// Where the tiles of a range lie, one after another as a task reads them: split by split, of a split head by head,
// of a head keys before values.
template <class C>
class TileWalk {
  public:
    // Of an empty range there are none.
    TileWalk(const AttentionTask& task, const CacheRange& range)
        : layout_(task.num_kv_heads, task.head_dim, task.block_size),
          keys_(static_cast<const C*>(task.k_cache)),
          values_(static_cast<const C*>(task.v_cache)),
          range_(range),
          num_tiles_(ceil_div(range.last, kHalf)) {
        begin_split(range.first / kHalf);
    }

    bool done() const { return first_ >= num_tiles_; }

    // Unless it is done.
    const C* next() {
        const C* tile = (reads_values_ ? values_ : keys_) + layout_.tile(range_.block_table, head_, tile_);
        if (++tile_ < end_) return tile;
        tile_ = first_;
        reads_values_ = !reads_values_;
        if (!reads_values_ && ++head_ == range_.last_kv_head) begin_split(end_);
        return tile;
    }

  private:
    void begin_split(int first) {
        first_ = tile_ = first;
        end_ = smaller((first / kSplitTiles + 1) * kSplitTiles, num_tiles_);
        head_ = range_.first_kv_head;
    }

    const TileLayout<C> layout_;
    const C* const keys_;
    const C* const values_;
    const CacheRange range_;
    const int num_tiles_;
    int first_ = 0, end_ = 0, head_ = 0, tile_ = 0;
    bool reads_values_ = false;
};

// Cache of elements C, tiles of elements T (C, or wider).
template <class S, class C, class T>
class TileReader {
    static constexpr bool kInt8 = std::is_same_v<C, std::int8_t>;
    static constexpr bool kAsStored = std::is_same_v<C, T>;

  public:
    // range: all that the task reads. It has begun to be fetched when the task begins, and so it will be with what
    // follows it.
    TileReader(const AttentionTask& task, const CacheRange& range)
        : task_(task),
          layout_(task.num_kv_heads, task.head_dim, task.block_size),
          dim_(task.head_dim),
          walk_(task, range),
          following_(task, task.following) {
        for (int i = 0; i < kTilesAhead && !walk_.done(); ++i) walk_.next();
    }

    // Goes on to a range of one split at most.
    void select(const CacheRange& range) { here_ = range; }

    // Tiles from `first` to `last`, at most, of a head. Where they are not as they are stored, or `joined`, they go
    // to `keys` and `values`, each where it would be if all lay one after another.
    // What is in tiles of keys past the end means nothing; values past the end are zero.
    void read(int kv_head, int first, int last, bool joined, T* keys, T* values, SplitTiles<T>* out) {
        out->end = smaller(last, ceil_div(here_.last - here_.first, kHalf));
        out->fetches = kAsStored;
        for (int i = first; i < out->end; ++i) {
            const C* tile = here(task_.k_cache, kv_head, i);
            const C* ahead = next_ahead(tile);
            out->keys[i] = key_tile(i, tile, ahead, keys + i * kHalf * dim_);
            if constexpr (kAsStored) out->keys_ahead[i] = ahead;
        }
        for (int i = first; i < out->end; ++i) {
            const C* tile = here(task_.v_cache, kv_head, i);
            const C* ahead = next_ahead(tile);
            out->values[i] = value_tile(i, tile, ahead, joined, values + i * kHalf * dim_);
            if constexpr (kAsStored) out->values_ahead[i] = ahead;
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
    }

  private:
    // Tiles between the one that is read and the one that is fetched: a memory latency of reading, at least.
    static constexpr int kTilesAhead = 2 * kSplitTiles;

    // Tile i of the split.
    const C* here(const void* cache, int kv_head, int i) const {
        return static_cast<const C*>(cache) +
               layout_.tile(here_.block_table, kv_head, here_.first / kHalf + i);
    }

    // The tile to be fetched while `tile` is read, which stands for none.
    const C* next_ahead(const C* tile) {
        if (!walk_.done()) return walk_.next();
        return following_.done() ? tile : following_.next();
    }

    const T* key_tile(int i, const C* tile, const C* ahead, T* out) {
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

    const T* value_tile(int i, const C* tile, const C* ahead, bool joined, T* out) {
        const int count = smaller(kHalf, here_.last - here_.first - i * kHalf);
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
    const int dim_;
    TileWalk<C> walk_, following_;
    CacheRange here_;
    alignas(64) float key_scales_[kInt8 ? kSplit : 1] = {};
    alignas(64) float value_scales_[kInt8 ? kSplit : 1] = {};
};

}  // namespace
}  // namespace ramet
