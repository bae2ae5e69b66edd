// The scores of one row in one split, to weights: a vector holds positions, and a row's sum is taken in an
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

    static float maximum(const float* scores, int begin, int end) {
        Reg top[kChains];
        for (int i = 0; i < kChains; ++i) top[i] = S::load(scores + begin + i * S::W);
        for (int c = begin + kGroup; c < end; c += kGroup) {
            for (int i = 0; i < kChains; ++i) {
                top[i] = S::max(top[i], S::load(scores + c + i * S::W));
            }
        }
        for (int n = kChains / 2; n > 0; n /= 2) {
            for (int i = 0; i < n; ++i) top[i] = S::max(top[i], top[i + n]);
        }
        return S::reduce_max(top[0]);
    }

    // weights = 2^(factor * scores - max), maybe in the same place; returns their sum. What is stored is
    // multiplied by the scale of its position if Scaled.
    template <bool Scaled, class A>
    static float exponentials(const float* scores, int begin, int end, float factor, float max,
                              const float* scales, A* weights) {
        const Reg scale = S::set1(factor);
        // Finite where the row sees nothing, so that the differences are no NaN.
        const Reg shift = S::set1(-larger(-1e30f, max));
        Reg total[kChains];
        for (int i = 0; i < kChains; ++i) total[i] = S::zero();
        for (int c = begin; c < end; c += kGroup) {
            for (int i = 0; i < kChains; ++i) {
                const Reg score = S::load(scores + c + i * S::W);
                const Reg weight = exponential(S::fma(score, scale, shift), T{});
                total[i] = S::add(total[i], weight);
                if constexpr (Scaled) {
                    S::store(weights + c + i * S::W, S::mul(weight, S::load(scales + c + i * S::W)));
                } else {
                    S::store(weights + c + i * S::W, weight);
                }
            }
        }
        for (int n = kChains / 2; n > 0; n /= 2) {
            for (int i = 0; i < n; ++i) total[i] = S::add(total[i], total[i + n]);
        }
        return S::reduce_add(total[0]);
    }

  private:
    using Reg = typename S::Reg;
    // Sums and maxima that need not wait for each other.
    static constexpr int kChains = kGroup / S::W;

    static Reg exponential(Reg x, bf16) { return exp2_near<S>(x); }
    static Reg exponential(Reg x, float) { return exp2<S>(x); }
};

}  // namespace
}  // namespace ramet
