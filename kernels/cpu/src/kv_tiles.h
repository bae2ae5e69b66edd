// Blocks of a cache in the layout that the products of attention take (drawn in kernels/README.md).
//
// A block has the rows of one head after another, and of a head tiles of 16 positions. A tile has its 16
// rows (int8_row.h) interleaved by words of 4 bytes:
//   keys      word w of the row of position p is word [w][p]
//   values    a word is one dim of the 1, 2 or 4 positions that fit: [positions / n][head_dim][n]; then the
//             scales of 8 bits, [16]
#pragma once

#include "int8_row.h"

namespace ramet {

// Which rows of a cache are written; none: rows as they are, wherever they go.
enum class CachePart : int { none = 0, keys = 1, values = 2 };

constexpr int kWordBytes = 4;

// Elements of one dim that lie together in tiles: dims of a key's row, positions of values.
template <class C>
constexpr int kPerWord = kWordBytes / static_cast<int>(sizeof(C));

// Whether a cache of such blocks is in tiles; others have [position][head][row_size].
static inline bool in_tiles(int head_dim, int block_size) {
    return head_dim % kGroup == 0 && head_dim <= kMaxInt8HeadDim && block_size % kHalf == 0;
}

// Where tiles lie, in elements C of a cache of keys or values.
template <class C>
struct TileLayout {
    int num_heads, block_size, row_size;

    TileLayout(int num_kv_heads, int head_dim, int tokens_per_block)
        : num_heads(num_kv_heads),
          block_size(tokens_per_block),
          row_size(ramet::row_size(static_cast<const C*>(nullptr), head_dim)) {}

    int tile_size() const { return kHalf * row_size; }
    int head_size() const { return block_size * row_size; }
    // Of head 0.
    std::int64_t offset(std::int64_t block, int tile_of_block) const {
        return block * num_heads * head_size() + tile_of_block * tile_size();
    }
    // Of a head of a sequence, counted from its first tile.
    std::int64_t tile(const std::int32_t* block_table, int head, int index) const {
        const int tiles_per_block = block_size / kHalf;
        return offset(block_table[index / tiles_per_block], index % tiles_per_block) +
               head * head_size();
    }
};

// The scales of a tile of 8 bits, keys or values: one for each position.
static inline float* tile_scales(std::int8_t* tile, int head_dim) {
    return reinterpret_cast<float*>(tile + kHalf * head_dim);
}
static inline const float* tile_scales(const std::int8_t* tile, int head_dim) {
    return reinterpret_cast<const float*>(tile + kHalf * head_dim);
}

// The row of a key, to position p of its tile.
template <class C>
static inline void put_key(const C* row, int row_size, int p, C* tile) {
    const int num_words = row_size / kPerWord<C>;
    for (int word = 0; word < num_words; ++word) {
        std::memcpy(tile + (word * kHalf + p) * kPerWord<C>, row + word * kPerWord<C>, kWordBytes);
    }
}

// The row of a value. No byte of another position is written: it may be another thread's.
template <class C>
static inline void put_value(const C* row, int head_dim, int p, C* tile) {
    constexpr int n = kPerWord<C>;
    C* target = tile + p / n * n * head_dim + p % n;
    for (int d = 0; d < head_dim; ++d) target[d * n] = row[d];
    if constexpr (sizeof(C) == 1) {
        std::memcpy(tile_scales(tile, head_dim) + p, row + head_dim, kScaleBytes);
    }
}

}  // namespace ramet
