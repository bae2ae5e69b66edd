// Vectors of four floats as plain C++, for any processor.
#pragma once

#include <cmath>

#include "common.h"

namespace ramet {
namespace {

struct PortableSimd {
    static constexpr int W = 4;
    // Whether an instruction multiplies bfloat16; without one, they are widened first.
    static constexpr bool kMultipliesPairs = false;
    static constexpr bool kExpands = false;
    struct Reg {
        float lane[W];
    };
    struct Pairs {
        Reg low, high;
    };

    template <class F>
    static Reg make(const F& f) {
        Reg r;
        for (int i = 0; i < W; ++i) r.lane[i] = f(i);
        return r;
    }

    static Reg zero() { return set1(0.0f); }
    static Reg set1(float x) {
        return make([&](int) { return x; });
    }
    static Reg load(const float* p) {
        return make([&](int i) { return p[i]; });
    }
    static Reg load(const bf16* p) {
        return make([&](int i) { return to_float(p[i]); });
    }
    static Reg load(const std::int8_t* p) {
        return make([&](int i) { return to_float(p[i]); });
    }
    // Byte J of each word, from the low one on, signed.
    template <int J>
    static Reg load_bytes(const std::uint32_t* words) {
        return make([&](int i) {
            return static_cast<float>(static_cast<std::int8_t>(words[i] >> (8 * J) & 0xff));
        });
    }
    static void store(float* p, Reg a) {
        for (int i = 0; i < W; ++i) p[i] = a.lane[i];
    }
    static void store(bf16* p, Reg a) {
        for (int i = 0; i < W; ++i) p[i] = to_bf16(a.lane[i]);
    }
    // Two vectors, one after the other.
    template <class T>
    static void store_two(T* p, Reg a, Reg b) {
        store(p, a);
        store(p + W, b);
    }
    // W pairs of floats that are bfloat16 without rounding.
    static void store_exact_pairs(bf16* p, Reg first, Reg second) {
        for (int i = 0; i < W; ++i) {
            p[2 * i] = to_bf16(first.lane[i]);
            p[2 * i + 1] = to_bf16(second.lane[i]);
        }
    }
    static Reg rounded_to_bf16(Reg a) {
        return make([&](int i) { return to_float(to_bf16(a.lane[i])); });
    }
    static Reg add(Reg a, Reg b) {
        return make([&](int i) { return a.lane[i] + b.lane[i]; });
    }
    static Reg sub(Reg a, Reg b) {
        return make([&](int i) { return a.lane[i] - b.lane[i]; });
    }
    static Reg mul(Reg a, Reg b) {
        return make([&](int i) { return a.lane[i] * b.lane[i]; });
    }
    static Reg div(Reg a, Reg b) {
        return make([&](int i) { return a.lane[i] / b.lane[i]; });
    }
    // 1 / a within 2 units in the last place; of infinity it is 0.
    static Reg reciprocal(Reg a) { return div(set1(1.0f), a); }
    // a * b + c.
    static Reg fma(Reg a, Reg b, Reg c) {
        return make([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
    }
    static Reg max(Reg a, Reg b) {
        return make([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
    }
    static Reg min(Reg a, Reg b) {
        return make([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
    }
    // a where it is not below the floor, else 0.
    static Reg zero_below(Reg a, Reg floor) {
        return make([&](int i) { return a.lane[i] < floor.lane[i] ? 0.0f : a.lane[i]; });
    }
    static float reduce_add(Reg a) { return (a.lane[0] + a.lane[2]) + (a.lane[1] + a.lane[3]); }
    static float reduce_max(Reg a) {
        const float b = larger(a.lane[0], a.lane[2]), c = larger(a.lane[1], a.lane[3]);
        return larger(b, c);
    }
    // The integer nearest to x.
    static Reg round(Reg x) {
        return make([&](int i) { return std::nearbyint(x.lane[i]); });
    }
    // a * 2^n for a whole n from -126 to 127; below that zero, at 128 infinity.
    static Reg scale_by_power(Reg a, Reg n) {
        return make([&](int i) {
            if (n.lane[i] < -126.0f) return 0.0f;
            if (n.lane[i] != n.lane[i]) return a.lane[i];
            const std::uint32_t bits = static_cast<std::uint32_t>(
                                           static_cast<std::int32_t>(n.lane[i]) + 127)
                                       << 23;
            float power;
            std::memcpy(&power, &bits, sizeof power);
            return a.lane[i] * power;
        });
    }
    // x - floor(x), and 0 for -infinity.
    static Reg fraction(Reg x) {
        return make([&](int i) {
            return std::isinf(x.lane[i]) ? 0.0f : x.lane[i] - std::floor(x.lane[i]);
        });
    }
    // a * 2^floor(x) for x <= 0.
    static Reg scale_by_floor(Reg a, Reg x) {
        return scale_by_power(a, make([&](int i) { return std::floor(x.lane[i]); }));
    }

    // Pairs of consecutive elements of the reduced dimension, one pair a lane.
    static Pairs load_pairs(const bf16* p) {
        return {make([&](int i) { return to_float(p[2 * i]); }),
                make([&](int i) { return to_float(p[2 * i + 1]); })};
    }
    // Of each pair, the first element or the second.
    static Reg load_first(const bf16* pairs) { return load_pairs(pairs).low; }
    static Reg load_second(const bf16* pairs) { return load_pairs(pairs).high; }

    // out[c][r] = rows[r][c] for a square of 16 x 16.
    static void transpose16(const std::uint32_t* const rows[16], std::uint32_t* out) {
        for (int c = 0; c < 16; ++c) {
            for (int r = 0; r < 16; ++r) out[c * 16 + r] = rows[r][c];
        }
    }
    // out[2 i] = a[i], out[2 i + 1] = b[i] for 16 elements.
    static void interleave16(const bf16* a, const bf16* b, bf16* out) {
        for (int i = 0; i < 16; ++i) {
            out[2 * i] = a[i];
            out[2 * i + 1] = b[i];
        }
    }
};

}  // namespace
}  // namespace ramet
