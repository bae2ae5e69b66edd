// The scores of rows in one split, to weights: a vector holds positions, and a row's sum is taken in an
// order that positions alone decide.
#pragma once

#include <limits>

#include "common.h"
#include "vector_math.h"

namespace ramet {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Of positions [begin, end) of a split, multiples of 32. T decides how near the exponentials are: where
// the weights' partners in products are bfloat16, to well within that.
template <class S, class T>
struct RowSoftmax {
    // Scores times a scale, bounded by a softcap unless it is 0, in units of ln 2.
    static void transform(float* scores, int begin, int end, float scale, float softcap) {
        for (int i = begin; i < end; i += S::W) {
            auto x = S::mul(S::load(scores + i), S::set1(scale));
            if (softcap != 0.0f) {
                const auto bounded = tanh<S>(S::mul(x, S::set1(1.0f / softcap)));
                x = S::mul(bounded, S::set1(softcap));
            }
            S::store(scores + i, S::mul(x, S::set1(kLog2E)));
        }
    }

    // Scores times the scale of each position.
    static void multiply(float* scores, int begin, int end, const float* scales) {
        for (int i = begin; i < end; i += S::W) {
            S::store(scores + i, S::mul(S::load(scores + i), S::load(scales + i)));
        }
    }

    // Scores outside of [low, high) become -infinity.
    static void mask(float* scores, int begin, int end, int low, int high) {
        for (int i = begin; i < smaller(low, end); ++i) scores[i] = kMinusInfinity;
        for (int i = larger(begin, high); i < end; ++i) scores[i] = kMinusInfinity;
    }

    // The largest score of each of N rows, kSplit floats apart. Rows of one call need not wait for each other.
    template <int N>
    static void maxima(const float* scores, int begin, int end, float* max) {
        Reg top[N][kChains];
        for (int r = 0; r < N; ++r) {
            for (int i = 0; i < kChains; ++i) top[r][i] = S::load(scores + r * kSplit + begin + i * S::W);
        }
        for (int c = begin + kGroup; c < end; c += kGroup) {
            for (int r = 0; r < N; ++r) {
                for (int i = 0; i < kChains; ++i) {
                    top[r][i] = S::max(top[r][i], S::load(scores + r * kSplit + c + i * S::W));
                }
            }
        }
        reduce<N>(top, S::max, [](const auto&... x) { return S::reduce_max(x...); }, max);
    }

    // weights = 2^(factor * scores - max) of N rows, maybe in the same place, and their sums. What is stored is
    // multiplied by the scale of its position if Scaled.
    template <bool Scaled, int N, class A>
    static void exponentials(const float* scores, int begin, int end, float factor, const float* max,
                             const float* scales, A* weights, float* sum) {
        const Reg scale = S::set1(factor);
        Reg shift[N], total[N][kChains];
        for (int r = 0; r < N; ++r) {
            // Finite where the row sees nothing, so that the differences are no NaN.
            shift[r] = S::set1(-larger(-1e30f, max[r]));
            for (int i = 0; i < kChains; ++i) total[r][i] = S::zero();
        }
        for (int c = begin; c < end; c += kGroup) {
            for (int r = 0; r < N; ++r) {
                Reg weight[kChains];
                for (int i = 0; i < kChains; ++i) {
                    const Reg score = S::load(scores + r * kSplit + c + i * S::W);
                    weight[i] = exponential(S::fma(score, scale, shift[r]), T{});
                    total[r][i] = S::add(total[r][i], weight[i]);
                    if constexpr (Scaled) weight[i] = S::mul(weight[i], S::load(scales + c + i * S::W));
                }
                for (int i = 0; i < kChains; i += 2) {
                    S::store_two(weights + r * kSplit + c + i * S::W, weight[i], weight[i + 1]);
                }
            }
        }
        reduce<N>(total, S::add, [](const auto&... x) { return S::reduce_add(x...); }, sum);
    }

  private:
    using Reg = typename S::Reg;
    // Sums and maxima that need not wait for each other.
    static constexpr int kChains = kGroup / S::W;
    // Rows whose vectors are reduced together where vectors are of 16 floats.
    static constexpr int kRowsReduced = 4;

    // One number of each row: its chains together, then the lanes of what they make.
    template <int N, class Pair, class Lanes>
    static void reduce(Reg (&chains)[N][kChains], const Pair& pair, const Lanes& lanes, float* out) {
        Reg all[N];
        for (int r = 0; r < N; ++r) {
            for (int n = kChains / 2; n > 0; n /= 2) {
                for (int i = 0; i < n; ++i) chains[r][i] = pair(chains[r][i], chains[r][i + n]);
            }
            all[r] = chains[r][0];
        }
        if constexpr (N == kRowsReduced) {
            lanes(all, out);
        } else {
            for (int r = 0; r < N; ++r) out[r] = lanes(all[r]);
        }
    }

    static Reg exponential(Reg x, bf16) { return exp2_near<S>(x); }
    static Reg exponential(Reg x, float) { return exp2<S>(x); }
};

}  // namespace
}  // namespace ramet
