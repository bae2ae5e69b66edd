#include "compact_weight.h"

#include <algorithm>
#include <numeric>

#include "panel_layout.h"

namespace ramet {
namespace {

std::uint8_t upper_byte(bf16 x) { return static_cast<std::uint8_t>(x.bits >> 8); }

// How often a panel has each upper byte.
std::array<std::uint32_t, 256> count_upper_bytes(const bf16* const (&sources)[kPanel],
                                                 int num_inputs) {
    // Two of them, so that equal neighbours need not wait for one another.
    std::array<std::uint32_t, 256> counts{}, others{};
    bool has_padding = num_inputs % kGroup;
    for (const bf16* source : sources) {
        has_padding |= !source;
        if (!source) continue;
        for (int k = 0; k + 1 < num_inputs; k += 2) {
            ++counts[upper_byte(source[k])];
            ++others[upper_byte(source[k + 1])];
        }
        if (num_inputs % 2) ++counts[upper_byte(source[num_inputs - 1])];
    }
    for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += others[i];
    // Padding is written as zeros and nobody looks whether those are listed: they must be.
    if (has_padding) counts[0] = UINT32_MAX;
    return counts;
}

UpperBytes most_frequent(const std::array<std::uint32_t, 256>& counts) {
    std::array<int, 256> bytes;
    std::iota(bytes.begin(), bytes.end(), 0);
    UpperBytes listed;
    std::partial_sort(bytes.begin(), bytes.begin() + listed.size(), bytes.end(),
                      [&](int a, int b) { return counts[a] > counts[b]; });
    std::copy_n(bytes.begin(), listed.size(), listed.begin());
    return listed;
}

// The code of each upper byte; those that are not listed have none.
struct Codes {
    static constexpr std::uint8_t kNone = 255;
    std::array<std::uint8_t, 256> of;

    explicit Codes(const UpperBytes& listed) {
        of.fill(kNone);
        for (std::size_t i = 0; i < listed.size(); ++i) of[listed[i]] = static_cast<std::uint8_t>(i);
    }
    bool has_all(const bf16* values, int count) const {
        std::uint8_t all = 0;
        for (int i = 0; i < count; ++i) all |= of[upper_byte(values[i])];
        return all < UpperBytes{}.size();
    }
};

void write_group(const bf16* plain, const Codes& codes, std::byte* target) {
    for (int pair = 0; pair < kGroup / 2; ++pair) {
        const bf16* first = plain + pair * kVectorSize;
        const bf16* second = first + kHalfSize;
        for (int word = 0; word < kVectorSize; ++word) {
            const CompactPlace place = CompactPlace::of(pair * kVectorSize + word);
            std::byte* lower = target + place.lower;
            lower[0] = static_cast<std::byte>(first[word].bits & 255);
            lower[kPartCodes] = static_cast<std::byte>(second[word].bits & 255);
            target[place.codes] = static_cast<std::byte>(codes.of[upper_byte(first[word])] |
                                                         codes.of[upper_byte(second[word])] << 4);
        }
    }
}

bf16 read_element(const std::byte* panel, const std::byte* group, bool is_plain, int element) {
    if (is_plain) return reinterpret_cast<const bf16*>(group)[element];
    const CompactPlace place = CompactPlace::of(element);
    const auto code = static_cast<int>(group[place.codes]) >> place.shift & 15;
    const auto bits = static_cast<int>(panel[code]) << 8 | static_cast<int>(group[place.lower]);
    return {static_cast<std::uint16_t>(bits)};
}

}  // namespace

CompactWeight::CompactWeight(Arena& arena, ThreadPool& pool, const bf16* weight, const bf16* bias,
                             int out_features, int in_features, bool gated)
    : PackedLinear(DType::bf16, out_features, in_features, gated) {
    // Sized here: what the pool runs must not throw.
    std::vector<PanelPlan> plans(num_panels(), {{}, std::vector<bool>(num_groups())});
    pool.run(num_panels(), [&](int panel, int) { plan_panel(weight, panel, &plans[panel]); });
    panel_offsets_.push_back(0);
    for (const PanelPlan& plan : plans) {
        const auto num_plain = std::count(plan.is_plain.begin(), plan.is_plain.end(), true);
        panel_offsets_.push_back(panel_offsets_.back() + CompactHeader::num_bytes(num_groups()) +
                                 num_plain * kPlainGroupBytes +
                                 (num_groups() - num_plain) * kCompactGroupBytes);
    }
    std::byte* data = allocate(arena, panel_offsets_.back());
    pool.run(num_panels(), [&](int panel, int) {
        pack_panel(weight, panel, plans[panel], data + panel_offsets_[panel]);
    });
    pack_bias(bias);
}

void CompactWeight::plan_panel(const bf16* weight, int panel, PanelPlan* plan) const {
    const bf16* sources[kPanel];
    find_sources(weight, panel, sources);
    plan->listed = most_frequent(count_upper_bytes(sources, in_features()));
    const Codes codes(plan->listed);
    for (int group = 0; group < num_groups(); ++group) {
        const int count = smaller(kGroup, in_features() - group * kGroup);
        plan->is_plain[group] = !std::all_of(
            std::begin(sources), std::end(sources), [&](const bf16* source) {
                return !source || codes.has_all(source + group * kGroup, count);
            });
    }
}

void CompactWeight::pack_panel(const bf16* weight, int panel, const PanelPlan& plan,
                               std::byte* target) const {
    const bf16* sources[kPanel];
    find_sources(weight, panel, sources);
    const Codes codes(plan.listed);
    std::memcpy(target, plan.listed.data(), sizeof plan.listed);
    std::byte* group_at = target + CompactHeader::num_bytes(num_groups());
    for (int group = 0; group < num_groups(); ++group) {
        const bf16* part[kPanel];
        for (int column = 0; column < kPanel; ++column) {
            part[column] = sources[column] ? sources[column] + group * kGroup : nullptr;
        }
        bf16 values[kGroupSize] = {};
        fill_panel(part, smaller(kGroup, in_features() - group * kGroup), values);
        if (plan.is_plain[group]) {
            target[sizeof(UpperBytes) + group / 8] |= static_cast<std::byte>(1 << group % 8);
            std::memcpy(group_at, values, sizeof values);
        } else {
            write_group(values, codes, group_at);
        }
        group_at += CompactHeader::group_bytes(target, group);
    }
}

void CompactWeight::unpack_row(std::int64_t row, void* out) const {
    const Place place = place_of(row);
    const std::byte* panel = data() + panel_offsets_[place.panel];
    const std::byte* group_at = panel + CompactHeader::num_bytes(num_groups());
    for (int group = 0; group < num_groups(); ++group) {
        const bool is_plain = CompactHeader::is_plain(panel, group);
        const int count = smaller(kGroup, in_features() - group * kGroup);
        for (int k = 0; k < count; ++k) {
            const auto element = static_cast<int>(panel_offset<bf16>(k, place.column));
            static_cast<bf16*>(out)[group * kGroup + k] =
                read_element(panel, group_at, is_plain, element);
        }
        group_at += CompactHeader::group_bytes(panel, group);
    }
}

}  // namespace ramet
