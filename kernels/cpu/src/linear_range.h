// A range of panels and rows of a linear layer: products, then the epilogue while they are in the cache.
#pragma once

#include "expand_groups.h"
#include "fetch_ahead.h"
#include "kernel_table.h"
#include "linear_finish.h"

namespace ramet {
namespace {

template <class S, class M>
struct LinearRange {
    static void run(const LinearJob& job, int first_panel, int last_panel, int first_row,
                    int last_row) {
        if (job.dtype == DType::bf16) {
            run_typed<bf16>(job, first_panel, last_panel, first_row, last_row);
        } else {
            run_typed<float>(job, first_panel, last_panel, first_row, last_row);
        }
    }

    // Element size of packed activations for a weight of that type.
    static std::size_t activation_size(DType dtype) {
        return dtype == DType::bf16 ? sizeof(Operand<bf16>) : sizeof(Operand<float>);
    }

    static void pack(const PackJob& job, int first_row, int last_row) {
        for (int row = first_row; row < last_row; ++row) {
            if (job.dtype == DType::bf16) {
                pack_row<bf16>(job, row);
            } else {
                pack_row<float>(job, row);
            }
        }
    }

  private:
    template <class T>
    using Operand = typename M::template Operand<T>;

    // Rows whose unfinished sums wait while a share of a panel passes them by.
    static constexpr int kRowsAtOnce = 256;
    // Groups of a compact panel that are expanded at once, where the products do not need more for their own
    // sake: little enough for the first-level cache beside what they were expanded from.
    static constexpr int kGroupsExpanded = 6;

    // How far ahead the weights of one block of rows are fetched: a memory latency of reading, and what is read at
    // once or is passed by several times, as that outruns lines that were nearer; as much as the cache has room for.
    static constexpr std::size_t kLatencyBytes = std::size_t{12} << 10;
    static constexpr std::size_t kNearBytes = std::size_t{16} << 10;
    template <class T>
    static std::size_t distance(const LinearJob& job, int num_rows) {
        if (job.panel_offsets) {
            if (num_rows <= smaller(M::kRows, M::kExpandingRows)) return kLatencyBytes;
            const std::size_t share = kGroupsExpanded * kCompactGroupBytes;
            return M::kFetchesNear ? kNearBytes : kLatencyBytes + share;
        }
        constexpr std::size_t share = M::template kGroupsAtOnce<T> * kGroup * kPanel * sizeof(T);
        return larger(kNearBytes, num_rows <= M::kRows ? 0 : share);
    }

    template <class T>
    static void pack_row(const PackJob& job, std::int64_t row) {
        const int num_groups = ceil_div(job.num_columns, kGroup);
        const T* x = static_cast<const T*>(job.x) + row * job.x_stride;
        Operand<T>* packed =
            static_cast<Operand<T>*>(job.packed) + activation_offset(row, 0, num_groups);
        for (int left = job.num_columns; left > 0; left -= kGroup) {
            if constexpr (sizeof(T) == sizeof(*packed)) {
                const int count = smaller(left, kGroup);
                std::memcpy(packed, x, count * sizeof(T));
                std::memset(packed + count, 0, (kGroup - count) * sizeof(T));
            } else {
                for (int i = 0; i < kGroup; i += S::W) {
                    S::store(packed + i, load_upto<S>(x + i, left - i));
                }
            }
            x += kGroup;
            packed += kTileRows * kGroup;
        }
    }

    template <class T>
    static void run_typed(const LinearJob& shared, int first_panel, int last_panel, int first_row,
                          int last_row) {
        const LinearJob job = shared;  // a copy that no store can alias
        const int num_blocks = ceil_div(last_row - first_row, kBlockRows);
        FetchAhead ahead;
        // Past the last panel there are those that this thread will probably have next.
        ahead.weight.end = panel_of<T>(job, job.num_panels());
        ahead.weight.num_lines = ceil_div(group_lines<T>(job), ceil_div(last_row - first_row, M::kRows));
        ahead.weight.near = num_blocks == 1 && M::kFetchesNear;
        M::begin();
        for (int panel = first_panel; panel < last_panel; ++panel) {
            if (num_blocks == 1) {
                // What steps add up to is less than a compact panel, or more.
                if (panel == first_panel || job.panel_offsets) {
                    const char* place =
                        panel_of<T>(job, panel) + distance<T>(job, last_row - first_row);
                    ahead.weight.at = smaller(larger(ahead.weight.at, place), place + kLatencyBytes);
                }
                multiply_rows<false, T>(job, panel, first_row, last_row, ahead);
            } else {
                ahead.weight.at = panel_of<T>(job, panel + 1);
                for (int row = first_row; row < last_row; row += kRowsAtOnce) {
                    multiply_rows<true, T>(job, panel, row, smaller(last_row, row + kRowsAtOnce),
                                           ahead);
                }
            }
        }
        M::end();
    }

    template <class T>
    static const char* panel_of(const LinearJob& job, int panel) {
        constexpr std::size_t kBytes = kGroup * kPanel * sizeof(T);
        return static_cast<const char*>(job.weight) +
               (job.panel_offsets ? job.panel_offsets[panel] : panel * job.num_groups * kBytes);
    }

    // Cache lines of a group; of most of them where they differ.
    template <class T>
    static int group_lines(const LinearJob& job) {
        constexpr std::size_t kBytes = kGroup * kPanel * sizeof(T);
        return static_cast<int>((job.panel_offsets ? kCompactGroupBytes : kBytes) / kCacheLine);
    }

    // One panel by some rows; kRowsPass: there are several blocks of them.
    template <bool kRowsPass, class T>
    static void multiply_rows(const LinearJob& job, int panel, int first_row, int last_row,
                              FetchAhead& ahead) {
        if constexpr (S::kExpands && sizeof(T) == sizeof(bf16)) {
            if (job.panel_offsets) {
                multiply_compact<kRowsPass>(job, panel, first_row, last_row, ahead);
                return;
            }
        }
        constexpr int kGroups = M::template kGroupsAtOnce<T>;
        const T* weight = reinterpret_cast<const T*>(panel_of<T>(job, panel));
        const auto at = [weight](int group) {
            return weight + static_cast<std::size_t>(group) * kGroup * kPanel;
        };
        if constexpr (sizeof(Operand<T>) != sizeof(T)) {
            if (M::template widens<T>(last_row - first_row)) {
                alignas(64) float widened[kGroups * kGroup * kPanel];
                multiply_groups<kRowsPass, T>(job, panel, first_row, last_row, kGroups, ahead,
                                              [&](int group, int num_groups) {
                                                  M::widen(at(group), num_groups, widened);
                                                  return static_cast<const float*>(widened);
                                              });
                return;
            }
        }
        const bool passes = kRowsPass || last_row - first_row > M::kRows;
        multiply_groups<kRowsPass, T>(job, panel, first_row, last_row,
                                      passes ? kGroups : job.num_groups, ahead,
                                      [&](int group, int) { return at(group); });
    }

    // The same for a panel of a compact weight: expanded by the first rows as they are multiplied, where they
    // can, else beforehand.
    template <bool kRowsPass>
    static void multiply_compact(const LinearJob& job, int panel, int first_row, int last_row,
                                 FetchAhead& ahead) {
        constexpr int kGroups = M::template kGroupsAtOnce<bf16>;
        ExpandGroups<S> groups(reinterpret_cast<const std::byte*>(panel_of<bf16>(job, panel)),
                               job.num_groups);
        const int num_rows = last_row - first_row;
        const auto multiply = [&](int step, const auto& weight) {
            multiply_groups<kRowsPass, bf16>(
                job, panel, first_row, last_row, step, ahead, [&](int group, int num_groups) {
                    // Steps go by compact groups alone.
                    if (!kRowsPass) {
                        ahead.weight.reach(groups.place() + distance<bf16>(job, num_rows));
                    }
                    return weight(group, num_groups);
                });
        };
        if constexpr (sizeof(Operand<bf16>) != sizeof(bf16)) {
            if (M::template widens<bf16>(num_rows)) {
                alignas(64) float widened[kGroups * kGroupSize];
                return multiply(kGroups, [&](int, int num_groups) {
                    M::widen(groups, num_groups, widened);
                    return static_cast<const float*>(widened);
                });
            }
        }
        alignas(64) bf16 expanded[larger(kGroups, kGroupsExpanded) * kGroupSize];
        const bool passes = kRowsPass || num_rows > M::kRows;
        if constexpr (M::kExpandingRows > 0) {
            if (M::kExpandingRows == M::kRows || num_rows <= M::kExpandingRows) {
                return multiply(passes ? kGroupsExpanded : 2 * kGroupsExpanded, [&](int, int) {
                    return CompactShare<S>{groups, passes ? expanded : nullptr};
                });
            }
        }
        multiply(passes ? kGroups : kGroupsExpanded, [&](int, int num_groups) {
            groups.expand(num_groups, expanded);
            return static_cast<const bf16*>(expanded);
        });
    }

    // weight(group, num_groups): those groups of the panel, as the products take them.
    template <bool kRowsPass, class T, class Weight>
    static void multiply_groups(const LinearJob& job, int panel, int first_row, int last_row,
                                int step, FetchAhead& ahead, const Weight& weight) {
        const std::size_t tile_stride =
            static_cast<std::size_t>(job.num_groups) * kTileRows * kGroup;
        const auto* activations = static_cast<const Operand<T>*>(job.activations) +
                                  first_row / kTileRows * tile_stride;
        alignas(64) float products[(kRowsPass ? kRowsAtOnce : kBlockRows) * kPanel];
        for (int group = 0; group < job.num_groups; group += step) {
            const bool last = group + step >= job.num_groups;
            // Sums that wait for more groups need a place each; whole ones are used at once.
            const int place = job.num_groups > step ? kPanel : 0;
            const int num_groups = smaller(step, job.num_groups - group);
            const auto part = weight(group, num_groups);
            for (int row = 0; row < last_row - first_row; row += kBlockRows) {
                const int num_rows = smaller(kBlockRows, last_row - first_row - row);
                float* target = products + row * place;
                if (last) fetch_out<T>(job, panel, first_row + row, num_rows, ahead);
                const auto* rows = activations + row / kTileRows * tile_stride + group * kTileRows * kGroup;
                const auto multiply = [&](const auto& weights) {
                    M::template block<kRowsPass>(rows, tile_stride, weights, num_groups, target, kPanel,
                                                 num_rows, group > 0, ahead);
                };
                if (row == 0) {
                    multiply(part);
                } else {
                    multiply(rest_of(part));
                }
                if (last) {
                    LinearFinish<S>::template run<T>(job, panel, first_row + row, num_rows, target);
                }
            }
        }
    }

    // Lines of the result, and of what is added to it, are seldom in a near cache.
    template <class T>
    static void fetch_out(const LinearJob& job, int panel, int first_row, int num_rows,
                          FetchAhead& ahead) {
        const int first = panel * job.columns_of_panel();
        const auto rows = [&](const void* matrix, std::int64_t stride, std::size_t element) {
            const char* start =
                static_cast<const char*>(matrix) + (first_row * stride + first) * element;
            return FetchRows{start, stride * element, num_rows};
        };
        ahead.out = rows(job.out, job.out_stride, job.wide_out ? sizeof(float) : sizeof(T));
        if (job.residual) ahead.residual = rows(job.residual, job.residual_stride, sizeof(T));
    }
};

}  // namespace
}  // namespace ramet
