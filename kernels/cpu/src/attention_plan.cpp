#include "attention_plan.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace ramet {
namespace {

// Of a split in a task, in units of a block of rows over it: reading its keys and values.
constexpr int kPackCost = 1;
// Blocks of rows below which it does not pay to read keys and values once more.
constexpr int kMinBlocks = 4;
// Tasks per thread that make an even division, whatever their order.
constexpr int kEvenTasks = 3;

void require(bool condition, const std::string& message) {
    if (!condition) throw std::invalid_argument(message);
}

}  // namespace

AttentionPlan::AttentionPlan(const SequenceTable& table, int num_heads, int num_kv_heads,
                             int head_dim, int block_size, int num_threads, bool share_prefixes)
    : table_(table),
      num_heads_(num_heads),
      num_kv_heads_(num_kv_heads),
      head_dim_(head_dim),
      block_size_(block_size),
      num_threads_(num_threads),
      share_prefixes_(share_prefixes),
      num_tokens_(table.cu_seqlens[table.num_seqs]) {
    require(num_heads / num_kv_heads <= kMaxTaskRows,
            "at most " + std::to_string(kMaxTaskRows) + " query heads can share a KV head");
    check();
    find_nodes();
}

void AttentionPlan::check() {
    require(table_.cu_seqlens[0] == 0, "cu_seqlens must start at 0");
    const auto capacity = static_cast<std::int64_t>(table_.max_num_blocks) * block_size_;
    for (int seq = 0; seq < table_.num_seqs; ++seq) {
        const int count = table_.cu_seqlens[seq + 1] - table_.cu_seqlens[seq];
        require(count >= 0, "cu_seqlens must never fall");
        require(count <= table_.kv_lens[seq],
                "a sequence has more queries than KV: kv_lens must count this step's too");
        require(table_.kv_lens[seq] <= capacity,
                "block_tables of " + std::to_string(table_.max_num_blocks) + " blocks of " +
                    std::to_string(block_size_) + " cannot hold " +
                    std::to_string(table_.kv_lens[seq]) + " tokens");
        const std::int32_t* blocks = block_table(seq);
        const std::int32_t* end = blocks + ceil_div(table_.kv_lens[seq], block_size_);
        std::int32_t lowest = 0;
        for (const std::int32_t* block = blocks; block != end; ++block) {
            lowest = std::min(lowest, *block);
            max_block_ = std::max(max_block_, *block);
        }
        require(lowest >= 0, "a block id is negative");
    }
}

void AttentionPlan::check_blocks(int num_blocks) const {
    require(max_block_ < num_blocks, "block " + std::to_string(max_block_) +
                                         " is outside of a cache of " +
                                         std::to_string(num_blocks) + " blocks");
}

const AttentionPlan::Schedule& AttentionPlan::schedule(int window) const {
    auto found = schedules_.find(window);
    if (found == schedules_.end()) found = schedules_.emplace(window, build(window)).first;
    return found->second;
}

void AttentionPlan::find_nodes() {
    for (int seq = 0; seq < table_.num_seqs; ++seq) {
        if (table_.cu_seqlens[seq + 1] > table_.cu_seqlens[seq]) seqs_by_table_.push_back(seq);
    }
    const int count = static_cast<int>(seqs_by_table_.size());
    if (share_prefixes_) {
        divide(0, count, 0);
    } else {
        for (int i = 0; i < count; ++i) divide(i, i + 1, 0);
    }
}

// Nodes of sequences that share all splits before `split`.
void AttentionPlan::divide(int first_seq, int last_seq, int split) {
    if (first_seq == last_seq) return;
    if (first_seq + 1 == last_seq) {
        const int end = ceil_div(table_.kv_lens[seqs_by_table_[first_seq]], kSplit);
        if (split < end) nodes_.push_back({first_seq, last_seq, split, end});
        return;
    }
    const int end = num_shared_splits(first_seq, last_seq, split);
    if (split < end) nodes_.push_back({first_seq, last_seq, split, end});
    // Those that end inside the split stand alone; the rest by the blocks they have in it.
    const auto begin = seqs_by_table_.begin();
    const int rest = static_cast<int>(
        std::stable_partition(begin + first_seq, begin + last_seq,
                              [&](int seq) { return table_.kv_lens[seq] < (end + 1) * kSplit; }) -
        begin);
    for (int i = first_seq; i < rest; ++i) divide(i, i + 1, end);
    const int first_block = end * kSplit / block_size_;
    const int last_block = ceil_div((end + 1) * kSplit, block_size_);
    const auto compare = [&](int a, int b) {
        const std::int32_t* blocks_a = block_table(a);
        const std::int32_t* blocks_b = block_table(b);
        for (int i = first_block; i < last_block; ++i) {
            if (blocks_a[i] != blocks_b[i]) return blocks_a[i] < blocks_b[i] ? -1 : 1;
        }
        return 0;
    };
    std::stable_sort(begin + rest, begin + last_seq,
                     [&](int a, int b) { return compare(a, b) < 0; });
    for (int i = rest; i < last_seq;) {
        int next = i + 1;
        while (next < last_seq && compare(seqs_by_table_[i], seqs_by_table_[next]) == 0) ++next;
        divide(i, next, end);
        i = next;
    }
}

// The first split from `split` on that not all of them have whole and in the same blocks.
int AttentionPlan::num_shared_splits(int first_seq, int last_seq, int split) const {
    int end = table_.kv_lens[seqs_by_table_[first_seq]] / kSplit;
    const std::int32_t* blocks = block_table(seqs_by_table_[first_seq]);
    for (int i = first_seq + 1; i < last_seq; ++i) {
        const int seq = seqs_by_table_[i];
        end = std::min(end, table_.kv_lens[seq] / kSplit);
        if (end <= split) return split;
        const int first_block = split * kSplit / block_size_;
        const int last_block = ceil_div(end * kSplit, block_size_);
        const auto differ = std::mismatch(blocks + first_block, blocks + last_block,
                                          block_table(seq) + first_block);
        const std::int64_t num_equal = differ.first - blocks;
        end = std::min<std::int64_t>(end, num_equal * block_size_ / kSplit);
    }
    return std::max(split, end);
}

AttentionPlan::Schedule AttentionPlan::build(int window) const {
    std::vector<QueryToken> all(num_tokens_);
    for (int seq = 0; seq < table_.num_seqs; ++seq) {
        const int last_row = table_.cu_seqlens[seq + 1];
        for (int row = table_.cu_seqlens[seq]; row < last_row; ++row) {
            const int position = table_.kv_lens[seq] - last_row + row;
            const auto lowest =
                std::max<std::int64_t>(0, static_cast<std::int64_t>(position) - window + 1);
            all[row] = {row, position, static_cast<int>(lowest / kSplit), -1, 0};
        }
    }
    Schedule schedule;
    for (const Node& node : nodes_) add_pieces(schedule, node, all);
    cut(schedule);
    number_partials(schedule, all);
    divide_by_heads(schedule);
    std::stable_sort(schedule.pieces.begin(), schedule.pieces.end(),
                     [](const Piece& a, const Piece& b) { return a.cost > b.cost; });
    return schedule;
}

// Blocks of rows, and packing, over splits and heads.
std::int64_t AttentionPlan::cost(const Piece& piece) const {
    const int num_rows = (piece.last_token - piece.first_token) * (num_heads_ / num_kv_heads_);
    return static_cast<std::int64_t>(piece.last_split - piece.first_split) *
           (piece.last_kv_head - piece.first_kv_head) * (kPackCost + ceil_div(num_rows, kHalf));
}

// The node's tokens that see any of its splits, as many at a time as a task holds.
void AttentionPlan::add_pieces(Schedule& schedule, const Node& node,
                               const std::vector<QueryToken>& all) const {
    const int max_tokens = kMaxTaskRows / (num_heads_ / num_kv_heads_);
    Piece piece{};
    const auto open = [&] {
        const int token = static_cast<int>(schedule.tokens.size());
        piece = {token, token, seqs_by_table_[node.first_seq], node.last_split, node.first_split, 0,
                 num_kv_heads_, num_kv_heads_, 0};
    };
    open();
    for (int i = node.first_seq; i < node.last_seq; ++i) {
        const int seq = seqs_by_table_[i];
        for (int row = table_.cu_seqlens[seq]; row < table_.cu_seqlens[seq + 1]; ++row) {
            const QueryToken& token = all[row];
            const int end = std::min(node.last_split, token.position / kSplit + 1);
            const int begin = std::max(node.first_split, token.first_split);
            if (begin >= end) continue;
            schedule.tokens.push_back(token);
            piece.first_split = std::min(piece.first_split, begin);
            piece.last_split = std::max(piece.last_split, end);
            if (++piece.last_token - piece.first_token < max_tokens) continue;
            add_piece(schedule, piece);
            open();
        }
    }
    if (piece.first_token < piece.last_token) add_piece(schedule, piece);
}

void AttentionPlan::add_piece(Schedule& schedule, const Piece& piece) const {
    schedule.pieces.push_back(piece);
    schedule.pieces.back().cost = cost(piece);
}

// By heads first, for then nothing is read twice or left in parts; then by rows, and at last by splits.
void AttentionPlan::cut(Schedule& schedule) const {
    std::int64_t total = 0;
    for (const Piece& piece : schedule.pieces) total += piece.cost;
    const std::int64_t limit = std::max<std::int64_t>(1, total / (num_threads_ * kEvenTasks));
    std::vector<Piece> pieces;
    pieces.swap(schedule.pieces);
    const int min_tokens = ceil_div(kMinBlocks * kHalf, num_heads_ / num_kv_heads_);
    for (const Piece& piece : pieces) {
        const int num_splits = piece.last_split - piece.first_split;
        const int num_tokens = piece.last_token - piece.first_token;
        const auto parts = num_threads_ == 1 ? 1 : static_cast<int>(ceil_div(piece.cost, limit));
        const int heads_each = std::min(most_heads(piece), std::max(1, num_kv_heads_ / parts));
        const int by_heads = ceil_div(num_kv_heads_, heads_each);
        const int by_rows = std::max(1, std::min(ceil_div(parts, by_heads), num_tokens / min_tokens));
        const int by_splits = std::max(1, std::min(parts / (by_heads * by_rows), num_splits / 2));
        for (int i = 0; i < by_rows * by_splits; ++i) {
            const int row_part = i / by_splits, split_part = i % by_splits;
            Piece part = piece;
            part.heads_each = heads_each;
            part.first_token = piece.first_token + num_tokens * row_part / by_rows;
            part.last_token = piece.first_token + num_tokens * (row_part + 1) / by_rows;
            part.first_split = piece.first_split + num_splits * split_part / by_splits;
            part.last_split = piece.first_split + num_splits * (split_part + 1) / by_splits;
            add_piece(schedule, part);
        }
    }
}

// As many heads in a task as it holds rows of, at least one: fewer tasks, and those of a position lie together.
int AttentionPlan::most_heads(const Piece& piece) const {
    const int num_rows = (piece.last_token - piece.first_token) * (num_heads_ / num_kv_heads_);
    return std::max(1, kMaxTaskRows / (ceil_div(num_rows, kHalf) * kHalf));
}

void AttentionPlan::divide_by_heads(Schedule& schedule) const {
    std::vector<Piece> pieces;
    pieces.swap(schedule.pieces);
    for (Piece piece : pieces) {
        const int step = std::min(piece.heads_each, most_heads(piece));
        for (int head = 0; head < num_kv_heads_; head += step) {
            piece.first_kv_head = head;
            piece.last_kv_head = std::min(head + step, num_kv_heads_);
            add_piece(schedule, piece);
        }
    }
}

void AttentionPlan::number_partials(Schedule& schedule, std::vector<QueryToken>& all) const {
    // One piece has a token's first split: where its last is elsewhere, there are partial results.
    for (const Piece& piece : schedule.pieces) {
        for (int i = piece.first_token; i < piece.last_token; ++i) {
            QueryToken& token = all[schedule.tokens[i].row];
            if (token.first_split < piece.first_split || token.first_split >= piece.last_split) continue;
            token.prefix_end = piece.last_split;
        }
    }
    for (QueryToken& token : all) {
        const int num_single = token.position / kSplit + 1 - token.prefix_end;
        if (num_single <= 0) continue;
        token.partial = schedule.num_partials;
        schedule.num_partials += 1 + num_single;
        schedule.merges.push_back(token);
    }
    for (QueryToken& token : schedule.tokens) token = all[token.row];
}

void run_attention(const Compute& compute, const AttentionPlan& plan, AttentionTask layer) {
    ThreadPool& pool = compute.pool;
    const AttentionPlan::Schedule& schedule = plan.schedule(layer.window);
    const std::size_t partials = static_cast<std::size_t>(schedule.num_partials) * layer.num_heads;
    layer.partials = static_cast<float*>(
        pool.partials().reserve(partials * partial_size(layer.head_dim) * sizeof(float)));
    const std::size_t scratch = compute.kernels.attention_scratch(layer.head_dim);
    for (int thread = 0; thread < pool.size(); ++thread) pool.thread_scratch(thread).reserve(scratch);

    const int num_tasks = static_cast<int>(schedule.pieces.size());
    const auto task_of = [&](int index) {
        const AttentionPlan::Piece& piece = schedule.pieces[index];
        AttentionTask task = layer;
        task.tokens = schedule.tokens.data() + piece.first_token;
        task.num_tokens = piece.last_token - piece.first_token;
        task.block_table = plan.block_table(piece.seq);
        task.first_split = piece.first_split;
        task.last_split = piece.last_split;
        task.first_kv_head = piece.first_kv_head;
        task.last_kv_head = piece.last_kv_head;
        return task;
    };
    pool.run(num_tasks, [&](int index, int thread) {
        AttentionTask task = task_of(index);
        // Threads take turns where tasks are alike.
        const int next = index + pool.size();
        if (next < num_tasks) task.following = range_of(task_of(next));
        compute.kernels.attend(task, pool.thread_scratch(thread).reserve(scratch));
    });
    const int num_merges = static_cast<int>(schedule.merges.size());
    const int per_task = std::max(1, ceil_div(num_merges * layer.num_kv_heads, 4 * pool.size()));
    const int per_head = ceil_div(num_merges, per_task);
    pool.run(per_head * layer.num_kv_heads, [&](int index, int thread) {
        const int first = index % per_head * per_task;
        AttentionTask task = layer;
        task.tokens = schedule.merges.data() + first;
        task.num_tokens = std::min(per_task, num_merges - first);
        task.first_kv_head = index / per_head;
        task.last_kv_head = task.first_kv_head + 1;
        compute.kernels.merge(task, pool.thread_scratch(thread).reserve(scratch));
    });
}

}  // namespace ramet
