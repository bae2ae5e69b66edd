// The groups of a compact panel, one after another.
#pragma once

#include "compact_group.h"

namespace ramet {
namespace {

template <class S>
class ExpandGroups {
  public:
    ExpandGroups(const std::byte* panel, int num_groups)
        : panel_(panel),
          at_(panel + CompactHeader::num_bytes(num_groups)),
          listed_(S::load_listed(reinterpret_cast<const std::uint8_t*>(panel))) {}

    bool is_plain() const { return CompactHeader::is_plain(panel_, group_); }
    const bf16* plain() const { return reinterpret_cast<const bf16*>(at_); }
    // Where it reads.
    const char* place() const { return reinterpret_cast<const char*>(at_); }

    // Of a group that is not plain: the vectors of part `part`, pairs 2 * part and the next, of both halves. In
    // the order of places in the plain group.
    void part(int part, typename S::Vector (&out)[4]) const {
        S::expand_part(reinterpret_cast<const std::uint8_t*>(at_) + part * kPartBytes, listed_, out);
    }

    // Those vectors, to where they are in a plain group.
    static void store(int part, const typename S::Vector (&vectors)[4], bf16* group) {
        for (int i = 0; i < 4; ++i) {
            S::store_vector(group + i / 2 * kHalfSize + (2 * part + i % 2) * kVectorSize, vectors[i]);
        }
    }

    void next_group() {
        at_ += is_plain() ? kPlainGroupBytes : kCompactGroupBytes;
        ++group_;
    }

    // The next groups; out: [num_groups][kGroupSize], plain.
    void expand(int num_groups, bf16* out) {
        for (int group = 0; group < num_groups; ++group, out += kGroupSize) {
            if (is_plain()) {
                std::memcpy(out, at_, kPlainGroupBytes);
            } else {
                for (int i = 0; i < kNumParts; ++i) {
                    typename S::Vector vectors[4];
                    part(i, vectors);
                    store(i, vectors, out);
                }
            }
            next_group();
        }
    }

  private:
    const std::byte* panel_;
    const std::byte* at_;
    typename S::Listed listed_;
    int group_ = 0;
};

// Groups that products expand as they multiply the first rows by them.
template <class S>
struct CompactShare {
    ExpandGroups<S>& groups;
    bf16* copy;  // [num_groups][kGroupSize] for the rows after those, plain; null: there are none
};

// The weights for all rows but the first ones.
template <class S>
const bf16* rest_of(const CompactShare<S>& share) {
    return share.copy;
}
template <class T>
const T* rest_of(const T* weights) {
    return weights;
}

}  // namespace
}  // namespace ramet
