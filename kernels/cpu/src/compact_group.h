// How a group of a compact weight lies in memory; compact_weight.h says what it stands for.
#pragma once

#include <array>

#include "common.h"

namespace ramet {

// The upper bytes that a panel lists.
using UpperBytes = std::array<std::uint8_t, 16>;

// Elements of a group, of half of it, and of a vector of 16 pairs.
constexpr int kGroupSize = kGroup * kPanel;
constexpr int kHalfSize = kGroupSize / 2;
constexpr int kVectorSize = 32;

// A part of a group: two pairs of inputs of both halves, four vectors.
constexpr int kNumParts = kGroup / 4;
constexpr int kPartCodes = 64;
constexpr int kPartBytes = 3 * kPartCodes;
constexpr std::size_t kCompactGroupBytes = std::size_t{kNumParts} * kPartBytes;
constexpr std::size_t kPlainGroupBytes = kGroupSize * sizeof(bf16);

// Where an element of a group is: a byte for its lower half, and half a byte for its code.
struct CompactPlace {
    int lower, codes;  // bytes from the start of the group
    int shift;         // of the code

    // element: index in the plain group. The two vectors of a half alternate by 8 bytes, so that interleaving
    // bytes, which is done in pieces of 16, gives one of them from the lower 8 and the other from the upper.
    static CompactPlace of(int element) {
        const int half = element / kHalfSize, pair = element % kHalfSize / kVectorSize;
        const int word = element % kVectorSize;
        const int byte = word / 8 * 16 + pair % 2 * 8 + word % 8;
        const int start = pair / 2 * kPartBytes;
        return {start + kPartCodes * (1 + half) + byte, start + byte, half * 4};
    }
};

// What comes before the groups of a panel: the listed bytes, and a bit for each group that is plain.
struct CompactHeader {
    static std::size_t num_bytes(int num_groups) {
        constexpr std::size_t kLine = 64;
        return ceil_div(sizeof(UpperBytes) + ceil_div(num_groups, 8), kLine) * kLine;
    }
    static bool is_plain(const std::byte* panel, int group) {
        const auto bits = static_cast<std::uint8_t>(panel[sizeof(UpperBytes) + group / 8]);
        return bits >> group % 8 & 1;
    }
    static std::size_t group_bytes(const std::byte* panel, int group) {
        return is_plain(panel, group) ? kPlainGroupBytes : kCompactGroupBytes;
    }
};

}  // namespace ramet
