// One step's attention, cut into tasks: which query tokens go together, over which splits.
//
// Splits whose blocks several sequences share are read once for all of them: the block tables make a tree,
// and a run of splits with the same sequences is a node of it. Tasks that would keep one thread busy while
// the others wait are cut by heads, by rows or by splits. Where several tasks have a token's splits they leave
// partial results, merged afterwards. None of this changes a bit of the result (attention_task.h).
#pragma once

#include <map>
#include <mutex>
#include <vector>

#include "attention_task.h"
#include "dense_ops.h"

namespace ramet {

// The tensors of ForwardBatch, kept alive by the caller.
struct SequenceTable {
    int num_seqs;
    const std::int32_t* cu_seqlens;
    const std::int32_t* kv_lens;
    const std::int32_t* block_tables;
    int max_num_blocks;
};

class AttentionPlan {
  public:
    struct Piece {
        int first_token, last_token;  // of Schedule::tokens
        int seq;                      // one that has these splits
        int first_split, last_split;
        int first_kv_head, last_kv_head;
        int heads_each;  // of a task, before they are divided
        std::int64_t cost;
    };
    // For one window.
    struct Schedule {
        std::vector<QueryToken> tokens;  // of the pieces, one after another
        std::vector<Piece> pieces;
        std::vector<QueryToken> merges;  // tokens with partial results
        int num_partials = 0;
    };

    // Throws std::invalid_argument where the tables do not fit together.
    // share_prefixes: whether splits that sequences share are read once for all of them.
    AttentionPlan(const SequenceTable& table, int num_heads, int num_kv_heads, int head_dim,
                  int block_size, int num_threads, bool share_prefixes);

    // Throws std::invalid_argument where a table names a block that a cache of num_blocks has not.
    void check_blocks(int num_blocks) const;

    int num_tokens() const { return num_tokens_; }
    int num_heads() const { return num_heads_; }
    int num_kv_heads() const { return num_kv_heads_; }
    int head_dim() const { return head_dim_; }
    int block_size() const { return block_size_; }

    // window: INT_MAX for all positions. Made when first asked for.
    const Schedule& schedule(int window) const;

    const std::int32_t* block_table(int seq) const {
        return table_.block_tables + static_cast<std::int64_t>(seq) * table_.max_num_blocks;
    }

  private:
    // Consecutive of seqs_by_table_, and the splits that they share.
    struct Node {
        int first_seq, last_seq;
        int first_split, last_split;
    };

    void check();
    void find_nodes();
    void divide(int first_seq, int last_seq, int split);
    int num_shared_splits(int first_seq, int last_seq, int split) const;
    Schedule build(int window) const;
    void add_pieces(Schedule& schedule, const Node& node, const std::vector<QueryToken>& all) const;
    void add_piece(Schedule& schedule, const Piece& piece) const;
    void cut(Schedule& schedule) const;
    void number_partials(Schedule& schedule, std::vector<QueryToken>& all) const;
    void divide_by_heads(Schedule& schedule) const;
    int most_heads(const Piece& piece) const;
    std::int64_t cost(const Piece& piece) const;

    const SequenceTable table_;
    const int num_heads_, num_kv_heads_, head_dim_, block_size_, num_threads_;
    const bool share_prefixes_;
    std::vector<int> seqs_by_table_;
    std::vector<Node> nodes_;
    int num_tokens_;
    std::int32_t max_block_ = -1;
    mutable std::map<int, Schedule> schedules_;
};

// Of a layer: the part of AttentionTask that is the same for all its tasks.
void run_attention(const Compute& compute, const AttentionPlan& plan, AttentionTask layer);

}  // namespace ramet
