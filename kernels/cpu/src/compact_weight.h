// A weight of bfloat16 in three quarters of its memory, without a loss.
//
// The upper byte of a bfloat16 is its sign and most of its exponent. Of these, trained weights have few: a panel
// lists the 16 that it has most of, and a group all of whose upper bytes are listed holds places in that list,
// half a byte each, beside the lower bytes. A group with another one is as in panel_layout.h. (The idea is that of
// DFloat11, arXiv:2504.11651, section 2.2, with codes of one length, which vectors look up at the pace of memory.)
//
//   panel   [listed bytes][a bit for each group that is plain][padding to a cache line][groups]
//   group   [8 parts][codes: 64 bytes][lower bytes of 64 elements of half 0][of half 1]
//           part p has pairs 2p and 2p + 1 of the plain group; a byte of codes has one for each half
#pragma once

#include "compact_group.h"
#include "packed_linear.h"
#include "threads.h"

namespace ramet {

class CompactWeight : public PackedLinear {
  public:
    // weight: [out_features, in_features], contiguous; bias: [out_features], or null.
    // Throws std::invalid_argument.
    CompactWeight(Arena& arena, ThreadPool& pool, const bf16* weight, const bf16* bias,
                  int out_features, int in_features, bool gated);

    void unpack_row(std::int64_t row, void* out) const override;
    const std::size_t* panel_offsets() const override { return panel_offsets_.data(); }

  private:
    struct PanelPlan {
        UpperBytes listed;
        std::vector<bool> is_plain;  // of each group
    };

    void plan_panel(const bf16* weight, int panel, PanelPlan* plan) const;
    void pack_panel(const bf16* weight, int panel, const PanelPlan& plan, std::byte* target) const;

    std::vector<std::size_t> panel_offsets_;
};

}  // namespace ramet
