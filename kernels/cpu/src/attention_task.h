// One task of attention: some query tokens of some KV heads over some splits of the keys.
//
// A split is kSplit positions at a multiple of kSplit. A split gives every row that sees into it a partial
// result (sum of weighted values, maximum score, sum of weights); partial results are folded in
// rising order of splits. The arithmetic of a row depends on its position alone, so any division of
// rows and splits into tasks gives the same bits.
#pragma once

#include "common.h"

namespace ramet {

struct QueryToken {
    std::int32_t row;          // of q
    std::int32_t position;     // in its sequence
    std::int32_t first_split;  // that it sees into
    // Index of its first partial result, or -1: one task has all of its splits. The first is the fold of
    // the splits before prefix_end, those after it are of single splits.
    std::int32_t partial;
    std::int32_t prefix_end;
};

// Positions [first, last) of a sequence, and KV heads, whose keys and values are wanted next.
struct CacheRange {
    const std::int32_t* block_table = nullptr;
    int first = 0, last = 0;
    int first_kv_head = 0, last_kv_head = 0;
};

struct AttentionTask {
    // The layer.
    DType q_dtype, kv_dtype;
    const void* q;  // [num_tokens, num_heads, head_dim]
    std::int64_t q_token_stride, q_head_stride;
    const void* k_cache;  // [num_slots, num_kv_heads, row_size], or as large in tiles; see kv_tiles.h
    const void* v_cache;
    int num_heads, num_kv_heads, head_dim, block_size;
    float scale;
    float softcap;  // 0: none
    int window;     // positions that a query sees, its own included; INT_MAX: all
    void* out;      // [num_tokens, num_heads, head_dim], contiguous, of q's dtype
    float* lse;     // [num_tokens, num_heads]
    float* partials;

    // The task.
    const QueryToken* tokens;
    int num_tokens;
    const std::int32_t* block_table;
    int first_split, last_split;
    int first_kv_head, last_kv_head;
    // What this thread will probably read next, whose beginning is to be fetched beside the end of this.
    CacheRange following;
};

// What a task reads, from the first group of positions that one of its tokens sees; the last token is one of those
// that see most.
static inline CacheRange range_of(const AttentionTask& task) {
    int first = task.first_split * kSplit;
    if (task.window < task.last_split * kSplit) {
        int lowest = task.tokens[0].position;
        for (int i = 1; i < task.num_tokens; ++i) lowest = smaller(lowest, task.tokens[i].position);
        first = larger(first, (lowest - task.window + 1) / kGroup * kGroup);
    }
    const int end = task.tokens[task.num_tokens - 1].position + 1;
    return {task.block_table, first, smaller(task.last_split * kSplit, end), task.first_kv_head,
            task.last_kv_head};
}

static inline int padded_head_dim(int head_dim) { return ceil_div(head_dim, kGroup) * kGroup; }

// Floats of one partial result: weighted values, maximum, sum of weights, padding.
static inline std::size_t partial_size(int head_dim) { return padded_head_dim(head_dim) + kHalf; }

// The fold of the first splits is number 0, a split at or past prefix_end 1 + split - prefix_end.
static inline float* partial_of(const AttentionTask& task, const QueryToken& token, int number,
                                int head) {
    const std::size_t index = static_cast<std::size_t>(token.partial + number) * task.num_heads + head;
    return task.partials + index * partial_size(task.head_dim);
}

}  // namespace ramet
