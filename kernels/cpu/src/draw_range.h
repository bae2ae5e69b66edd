// Draws one token of each row of logits: softmax at a temperature, then the inverse of its cumulative
// distribution, laid out by token id.
//
// Nothing is normalised and no weight is kept: one pass finds the maximum, one adds the weights up in
// blocks of fixed places, and only the block that the uniform number falls into is walked token by token.
// A row's token depends on that row alone.
#pragma once

#include <cmath>

#include "kernel_table.h"
#include "vector_math.h"

namespace ramet {
namespace {

template <class S>
struct DrawRange {
    static void run(const DrawJob& job, int first_row, int last_row) {
        for (int row = first_row; row < last_row; ++row) job.out[row] = draw(job, row);
    }

  private:
    using Reg = typename S::Reg;
    static constexpr int kBlock = kDrawBlock;

    struct Weights {
        const float* logits;
        int count;
        Reg maximum, scale, floor;

        // Weights of W tokens from `first` on, zeros past the end; the likeliest weighs 1.
        Reg at(int first) const {
            const int left = count - first;
            const Reg x = left >= S::W ? S::load(logits + first) : padded(first, left);
            const Reg weight = exp2<S>(S::mul(S::sub(x, maximum), scale));
            return S::zero_below(weight, floor);
        }

        Reg padded(int first, int left) const {
            float lanes[S::W];
            for (int i = 0; i < S::W; ++i) lanes[i] = i < left ? logits[first + i] : -INFINITY;
            return S::load(lanes);
        }

        double sum(int first, int last) const {
            Reg total = S::zero();
            for (int i = first; i < last; i += S::W) total = S::add(total, at(i));
            return S::reduce_add(total);
        }
    };

    static std::int64_t draw(const DrawJob& job, int row) {
        const Weights weights = weights_of(job, row);
        double* sums = job.block_sums + static_cast<std::int64_t>(row) * ceil_div(job.vocab_size, kBlock);
        double total = 0.0;
        for (int first = 0, block = 0; first < job.vocab_size; first += kBlock, ++block) {
            sums[block] = weights.sum(first, smaller(first + kBlock, job.vocab_size));
            total += sums[block];
        }
        const double target = smaller(job.uniform[row] * total, std::nextafter(total, 0.0));
        double below = 0.0;
        for (int first = 0, block = 0; first < job.vocab_size; first += kBlock, ++block) {
            // A NaN takes the last block.
            if (below + sums[block] > target || first + kBlock >= job.vocab_size) {
                return walk(weights, first, smaller(first + kBlock, job.vocab_size), target - below);
            }
            below += sums[block];
        }
        return 0;
    }

    // The first token whose cumulative weight exceeds `target`; of rounding that leaves none, the last
    // that weighs anything.
    static std::int64_t walk(const Weights& weights, int first, int last, double target) {
        double below = 0.0;
        int chosen = first;
        for (int i = first; i < last; i += S::W) {
            float lanes[S::W];
            S::store(lanes, weights.at(i));
            for (int lane = 0; lane < smaller(S::W, last - i); ++lane) {
                if (!(lanes[lane] > 0.0f)) continue;
                chosen = i + lane;
                below += lanes[lane];
                if (below > target) return chosen;
            }
        }
        return chosen;
    }

    static Weights weights_of(const DrawJob& job, int row) {
        const float* logits = job.logits + row * job.stride;
        Reg maximum = S::set1(-INFINITY);
        const int whole = job.vocab_size / S::W * S::W;
        for (int i = 0; i < whole; i += S::W) maximum = S::max(maximum, S::load(logits + i));
        float largest = S::reduce_max(maximum);
        for (int i = whole; i < job.vocab_size; ++i) largest = larger(largest, logits[i]);
        // Bounded, so that the likeliest token's difference of zero stays zero.
        const float scale = smaller(kLog2E / job.temperature[row], 3.0e38f);
        return {logits, job.vocab_size, S::set1(largest), S::set1(scale), S::set1(job.min_p[row])};
    }
};

}  // namespace
}  // namespace ramet
