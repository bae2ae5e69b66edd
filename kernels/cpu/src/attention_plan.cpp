#include "attention_plan.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace ramet {
namespace {

// Of a split in a task, in units of one row over one split: packing its keys and values.
constexpr int kPackCost = 12;
// Tasks per thread that make an even division, whatever their order.
constexpr int kEvenTasks = 3;

void require(bool condition, const std::string& message) {
    if (!condition) throw std::invalid_argument(message);
}

}  // namespace

AttentionPlan::AttentionPlan(const SequenceTable& table, int num_heads, int num_kv_heads,
                             int head_dim, int block_size, int num_threads)
    : table_(table),
      num_heads_(num_heads),
      num_kv_heads_(num_kv_heads),
      head_dim_(head_dim),
      block_size_(block_size),
      num_threads_(num_threads),
      num_tokens_(table.cu_seqlens[table.num_seqs]) {
    require(num_heads / num_kv_heads <= kMaxTaskRows,
            "at most " + std::to_string(kMaxTaskRows) + " query heads can share a KV head");
    check();
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
        for (int i = 0; i < ceil_div(table_.kv_lens[seq], block_size_); ++i) {
            require(blocks[i] >= 0, "a block id is negative");
            max_block_ = std::max(max_block_, blocks[i]);
        }
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

AttentionPlan::Schedule AttentionPlan::build(int window) const {
    Schedule schedule;
    schedule.tokens.reserve(num_tokens_);
    for (int seq = 0; seq < table_.num_seqs; ++seq) add_tokens(schedule, seq, window);
    cut(schedule);
    std::stable_sort(schedule.pieces.begin(), schedule.pieces.end(),
                     [](const Piece& a, const Piece& b) { return a.cost > b.cost; });
    return schedule;
}

void AttentionPlan::add_tokens(Schedule& schedule, int seq, int window) const {
    const int first_row = table_.cu_seqlens[seq], last_row = table_.cu_seqlens[seq + 1];
    const int first_position = table_.kv_lens[seq] - (last_row - first_row);
    const int group = num_heads_ / num_kv_heads_;
    const int tokens_per_piece = kMaxTaskRows / group;
    for (int row = first_row; row < last_row; row += tokens_per_piece) {
        const int end = std::min(row + tokens_per_piece, last_row);
        Piece piece{};
        piece.first_token = static_cast<int>(schedule.tokens.size());
        for (int r = row; r < end; ++r) {
            const int position = first_position + r - first_row;
            const auto lowest =
                std::max<std::int64_t>(0, static_cast<std::int64_t>(position) - window + 1);
            schedule.tokens.push_back({r, position, static_cast<int>(lowest / kSplit), -1});
        }
        piece.last_token = static_cast<int>(schedule.tokens.size());
        piece.seq = seq;
        piece.first_split = schedule.tokens[piece.first_token].first_split;
        piece.last_split = schedule.tokens.back().position / kSplit + 1;
        piece.cost = static_cast<std::int64_t>(piece.last_split - piece.first_split) *
                     (kPackCost + (end - row) * group);
        schedule.pieces.push_back(piece);
    }
}

void AttentionPlan::cut(Schedule& schedule) const {
    if (num_threads_ == 1) return;
    std::int64_t total = 0;
    for (const Piece& piece : schedule.pieces) total += piece.cost * num_kv_heads_;
    const std::int64_t limit = std::max<std::int64_t>(1, total / (num_threads_ * kEvenTasks));
    std::vector<Piece> pieces;
    for (const Piece& piece : schedule.pieces) {
        const int num_splits = piece.last_split - piece.first_split;
        const int parts = static_cast<int>(
            std::min<std::int64_t>(num_splits / 2, ceil_div(piece.cost, limit)));
        if (parts < 2) {
            pieces.push_back(piece);
            continue;
        }
        for (int part = 0; part < parts; ++part) {
            Piece cut = piece;
            cut.first_split = piece.first_split + num_splits * part / parts;
            cut.last_split = piece.first_split + num_splits * (part + 1) / parts;
            cut.cost = piece.cost * (cut.last_split - cut.first_split) / num_splits;
            pieces.push_back(cut);
        }
        schedule.merges.emplace_back(piece.first_token, piece.last_token);
        for (int i = piece.first_token; i < piece.last_token; ++i) {
            QueryToken& token = schedule.tokens[i];
            token.partial = schedule.num_partials;
            schedule.num_partials += token.position / kSplit + 1 - token.first_split;
        }
    }
    schedule.pieces = std::move(pieces);
}

void run_attention(const Compute& compute, const AttentionPlan& plan, AttentionTask layer) {
    ThreadPool& pool = compute.pool;
    const AttentionPlan::Schedule& schedule = plan.schedule(layer.window);
    const std::size_t partials = static_cast<std::size_t>(schedule.num_partials) * layer.num_heads;
    layer.partials = static_cast<float*>(
        pool.partials().reserve(partials * partial_size(layer.head_dim) * sizeof(float)));
    const std::size_t scratch = compute.kernels.attention_scratch(layer.head_dim);
    for (int thread = 0; thread < pool.size(); ++thread) pool.thread_scratch(thread).reserve(scratch);

    const int num_kv_heads = layer.num_kv_heads;
    pool.run(static_cast<int>(schedule.pieces.size()) * num_kv_heads, [&](int index, int thread) {
        const AttentionPlan::Piece& piece = schedule.pieces[index / num_kv_heads];
        AttentionTask task = layer;
        task.tokens = schedule.tokens.data() + piece.first_token;
        task.num_tokens = piece.last_token - piece.first_token;
        task.block_table = plan.block_table(piece.seq);
        task.first_split = piece.first_split;
        task.last_split = piece.last_split;
        task.kv_head = index % num_kv_heads;
        compute.kernels.attend(task, pool.thread_scratch(thread).reserve(scratch));
    });
    pool.run(static_cast<int>(schedule.merges.size()) * num_kv_heads, [&](int index, int thread) {
        const auto [first, last] = schedule.merges[index / num_kv_heads];
        AttentionTask task = layer;
        task.tokens = schedule.tokens.data() + first;
        task.num_tokens = last - first;
        task.kv_head = index % num_kv_heads;
        compute.kernels.merge(task, pool.thread_scratch(thread).reserve(scratch));
    });
}

}  // namespace ramet
