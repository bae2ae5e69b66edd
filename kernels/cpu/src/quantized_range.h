// Products of 8-bit activations and quantized weights, over a range of panels and rows.
//
// A group of 32 gives each element of the result an integer sum, which is exact in any order, and then the
// same float32 steps for every number of rows and every kind of integer product, groups in rising order:
//
//   acc = sum(a * value) * (weight's scale * row's scale) + acc
//   acc = minimum * (row's scale * sum(a)) + acc           where weights have minimums
//
// Without minimums the sum is of a * (value - 2^(bits - 1)).
#pragma once

#include <cmath>

#include "fetch_ahead.h"
#include "int8_row.h"
#include "linear_finish.h"
#include "quantized_job.h"
#include "quantized_weight.h"

namespace ramet {
namespace {

// D: integer products of vectors of bytes, S::W columns wide (dot_*.h).
template <class S, class D>
struct QuantizedRange {
    static void quantize(const QuantizeJob& job, int first_row, int last_row) {
        for (int row = first_row; row < last_row; ++row) {
            if (job.dtype == DType::bf16) {
                quantize_row<bf16>(job, row);
            } else {
                quantize_row<float>(job, row);
            }
        }
    }

    static void linear(const QuantizedJob& job, int first_panel, int last_panel, int first_row,
                       int last_row) {
        const auto run = [&](auto multiply) {
            run_panels(job, first_panel, last_panel, first_row, last_row, multiply);
        };
        if (job.bits == 8) {
            job.has_minimums ? run(Multiply<8, true>{}) : run(Multiply<8, false>{});
        } else {
            job.has_minimums ? run(Multiply<4, true>{}) : run(Multiply<4, false>{});
        }
    }

  private:
    using Reg = typename S::Reg;

    // How far ahead weights are fetched that are multiplied once each: a memory latency of reading.
    static constexpr std::size_t kStreamBytes = std::size_t{8} << 10;
    // Rows whose sums the registers hold.
    static constexpr int kRows = S::W == 16 ? 8 : 4;
    static constexpr int kVectors = kPanel / S::W;

    // Rows that pass by a panel at once.
    static int rows_of_pass(int num_rows) {
        if constexpr (D::kHasTiles) {
            if (num_rows >= D::kFewestTileRows) return kBlockRows;
        }
        return kRows;
    }

    template <class T>
    static void quantize_row(const QuantizeJob& job, int row) {
        const T* x = static_cast<const T*>(job.x) + row * job.x_stride;
        const int num_groups = ceil_div(job.num_columns, kGroup);
        QuantizedTile* tile = job.tiles + static_cast<std::int64_t>(row / kTileRows) * num_groups;
        for (int left = job.num_columns; left > 0; left -= kGroup, x += kGroup, ++tile) {
            alignas(64) float group[kGroup];
            for (int k = 0; k < kGroup; k += S::W) {
                S::store(group + k, left - k > 0 ? load_upto<S>(x + k, left - k) : S::zero());
            }
            quantize_group(group, *tile, row % kTileRows);
        }
    }

    static void quantize_group(const float (&x)[kGroup], QuantizedTile& tile, int row) {
        const Int8Scale by = int8_scale(x, kGroup);
        std::int32_t sum = 0;
        for (int k = 0; k < kGroup; ++k) {
            const std::int8_t value = nearest_int8(x[k] * by.inverse);
            tile.values[row][k] = value;
            sum += value;
        }
        tile.scales[row] = by.scale;
        tile.sums[row] = sum;
        tile.scaled_sums[row] = tile.scales[row] * static_cast<float>(sum);
    }

    template <class Multiply>
    static void run_panels(const QuantizedJob& shared, int first_panel, int last_panel, int first_row,
                           int last_row, Multiply multiply) {
        const QuantizedJob job = shared;  // a copy that no store can alias
        const LinearJob& linear = job.linear;
        const std::size_t panel_bytes = linear.num_groups * job.group_bytes;
        const auto* weight = static_cast<const std::byte*>(linear.weight);
        const int passes = ceil_div(last_row - first_row, rows_of_pass(last_row - first_row));
        FetchLines ahead;
        ahead.num_lines = ceil_div(static_cast<int>(ceil_div(job.group_bytes, kCacheLine)), passes);
        ahead.at = reinterpret_cast<const char*>(weight + first_panel * panel_bytes) + kStreamBytes;
        ahead.end = reinterpret_cast<const char*>(weight + linear.num_panels() * panel_bytes);
        if constexpr (D::kHasTiles) D::begin();
        for (int panel = first_panel; panel < last_panel; ++panel) {
            // Where rows pass by a panel several times, the next panel comes in meanwhile.
            if (passes > 1) ahead.at = reinterpret_cast<const char*>(weight + (panel + 1) * panel_bytes);
            for (int row = first_row; row < last_row; row += kBlockRows) {
                const int num_rows = smaller(kBlockRows, last_row - row);
                alignas(64) float products[kBlockRows * kPanel];
                multiply(job, weight + panel * panel_bytes, row, num_rows, products, ahead);
                if (linear.dtype == DType::bf16) {
                    LinearFinish<S>::template run<bf16>(linear, panel, row, num_rows, products);
                } else {
                    LinearFinish<S>::template run<float>(linear, panel, row, num_rows, products);
                }
            }
        }
        if constexpr (D::kHasTiles) D::end();
    }

    // products[num_rows][32] = rows from first_row on, times one panel.
    template <int kBits, bool kMinimums>
    struct Multiply {
        void operator()(const QuantizedJob& job, const std::byte* panel, int first_row, int num_rows,
                        float* products, FetchLines& ahead) const {
            if constexpr (D::kHasTiles) {
                if (num_rows >= D::kFewestTileRows) {
                    tiles(job, panel, first_row, num_rows, products, ahead);
                    return;
                }
            }
            for (int row = 0; row < num_rows;) {
                const int within = (first_row + row) % kTileRows;
                const int left = smaller(num_rows - row, kTileRows - within);
                const auto* tiles = static_cast<const QuantizedTile*>(job.linear.activations) +
                                    static_cast<std::int64_t>((first_row + row) / kTileRows) *
                                        job.linear.num_groups;
                float* target = products + row * kPanel;
                row += some_rows<kRows>(left, job, tiles, within, panel, target, ahead);
            }
        }

      private:
        // The same for whole tiles of rows. While the vectors fold one group the tiles multiply the next.
        static void tiles(const QuantizedJob& job, const std::byte* panel, int first_row,
                          int num_rows, float* products, FetchLines& ahead) {
            const int num_groups = job.linear.num_groups;
            const auto* first = static_cast<const QuantizedTile*>(job.linear.activations) +
                                static_cast<std::int64_t>(first_row / kTileRows) * num_groups;
            const QuantizedTile* second = num_rows > kTileRows ? first + num_groups : nullptr;
            alignas(64) typename D::Sums sums[2];
            std::memset(products, 0, num_rows * kPanel * sizeof(float));
            D::template start<kBits>(values_of(panel, 0), *first, second);
            D::store(sums[0], second);
            for (int group = 0; group < num_groups; ++group) {
                ahead.step();
                const bool more = group + 1 < num_groups;
                if (more) {
                    D::template start<kBits>(values_of(panel + job.group_bytes, 0), first[group + 1],
                                             second ? second + group + 1 : nullptr);
                }
                const int rows = smaller(num_rows, kTileRows);
                fold(panel, first[group], sums[group % 2][0], rows, products);
                if (second) {
                    fold(panel, second[group], sums[group % 2][1], num_rows - rows,
                         products + kTileRows * kPanel);
                }
                if (more) D::store(sums[(group + 1) % 2], second);
                panel += job.group_bytes;
            }
        }

        // The float32 steps of one group for one tile of rows.
        static void fold(const std::byte* group, const QuantizedTile& tile,
                         const std::int32_t (&sums)[2][kTileRows][kHalf], int num_rows,
                         float* products) {
            const auto* scales = reinterpret_cast<const f16*>(group + quantized_value_bytes(kBits));
            for (int v = 0; v < kVectors; ++v) {
                const Reg scale = D::load_halves(scales + v * S::W);
                const Reg minimum =
                    kMinimums ? D::load_halves(scales + kPanel + v * S::W) : S::zero();
                for (int r = 0; r < num_rows; ++r) {
                    float* target = products + r * kPanel + v * S::W;
                    S::store(target, folded(tile, r, D::load(sums[v][r]), scale, minimum,
                                            S::load(target)));
                }
            }
        }

        static Reg folded(const QuantizedTile& tile, int row, typename D::Integers sums, Reg scale,
                          Reg minimum, Reg acc) {
            const int less = kMinimums ? 0 : tile.sums[row] * (1 << (kBits - 1));
            acc = S::fma(D::to_floats(sums, less), S::mul(scale, S::set1(tile.scales[row])), acc);
            return kMinimums ? S::fma(minimum, S::set1(tile.scaled_sums[row]), acc) : acc;
        }

        // rows<count> for a count of at most left, which it returns: a power of two.
        template <int R>
        static int some_rows(int left, const QuantizedJob& job, const QuantizedTile* tiles,
                             int first_row, const std::byte* panel, float* products,
                             FetchLines& ahead) {
            if constexpr (R > 1) {
                if (left < R) {
                    return some_rows<R / 2>(left, job, tiles, first_row, panel, products, ahead);
                }
            }
            rows<R>(job, tiles, first_row, panel, products, ahead);
            return R;
        }

        template <int R>
        static void rows(const QuantizedJob& job, const QuantizedTile* tiles, int first_row,
                         const std::byte* panel, float* products, FetchLines& ahead) {
            Reg acc[R][kVectors];
            for (int r = 0; r < R; ++r) {
                for (int v = 0; v < kVectors; ++v) acc[r][v] = S::zero();
            }
            for (int group = 0; group < job.linear.num_groups; ++group) {
                ahead.step();
                const QuantizedTile& tile = tiles[group];
                const auto* scales =
                    reinterpret_cast<const f16*>(panel + quantized_value_bytes(kBits));
                for (int v = 0; v < kVectors; ++v) {
                    // So that rows are read again for the next vector: keeping all of them takes more
                    // registers than there are.
                    if (R > 1) __asm__ volatile("" ::: "memory");
                    typename D::Integers sums[R];
                    D::template group<kBits, R>(values_of(panel, v), tile.values[first_row], sums);
                    const Reg scale = D::load_halves(scales + v * S::W);
                    const Reg minimum =
                        kMinimums ? D::load_halves(scales + kPanel + v * S::W) : S::zero();
                    for (int r = 0; r < R; ++r) {
                        acc[r][v] =
                            folded(tile, first_row + r, sums[r], scale, minimum, acc[r][v]);
                    }
                }
                panel += job.group_bytes;
            }
            for (int r = 0; r < R; ++r) {
                for (int v = 0; v < kVectors; ++v) {
                    S::store(products + r * kPanel + v * S::W, acc[r][v]);
                }
            }
        }

        // A vector of columns: its quads follow each other, 64 bytes apart.
        static const std::uint8_t* values_of(const std::byte* group, int v) {
            const int column = v * S::W;
            return reinterpret_cast<const std::uint8_t*>(group) +
                   column / kHalf * (quantized_value_bytes(kBits) / 2) + column % kHalf * kQuad;
        }
    };
};

}  // namespace
}  // namespace ramet
