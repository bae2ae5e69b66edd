// Memory on its way to a near cache while something else is multiplied: the next weights, and
// the places where an epilogue will read and write.
#pragma once

#include <cstddef>

namespace ramet {
namespace {

constexpr std::size_t kCacheLine = 64;

// Walks from `at` to `end`, num_lines cache lines with each group of a product.
struct FetchLines {
    const char* at = nullptr;
    const char* end = nullptr;
    int num_lines = 0;
    // To the first-level cache, else to the second.
    bool near = false;

    // One of kSteps steps that a group has.
    template <int kSteps = 1>
    void step() {
        if (at >= end) return;
        const int count = (num_lines + kSteps - 1) / kSteps;
        for (int line = 0; line < count; ++line) fetch(at + line * kCacheLine);
        at += count * kCacheLine;
    }

    // All up to `place` at once, where steps have not come as far: groups of a compact weight differ in length.
    void reach(const char* place) {
        for (; at < place && at < end; at += kCacheLine) fetch(at);
    }

  private:
    void fetch(const char* line) const {
        if (near) {
            __builtin_prefetch(line, 0, 3);
        } else {
            __builtin_prefetch(line, 0, 2);
        }
    }
};

// Walks down the rows of a matrix, one cache line of each, some rows with each group.
struct FetchRows {
    static constexpr int kRowsAGroup = 4;
    const char* at = nullptr;
    std::size_t stride = 0;
    int num_rows = 0;

    template <int kSteps = 1>
    void step() {
        for (int i = 0; i < kRowsAGroup / kSteps && num_rows > 0; ++i, --num_rows) {
            __builtin_prefetch(at, 0, 2);
            at += stride;
        }
    }
};

// Steps lie between the parts of a product, so that memory is read evenly: a processor stops at the first line
// for which it has no buffer free.
struct FetchAhead {
    FetchLines weight;
    FetchRows out, residual;

    template <int kSteps = 1>
    void step() {
        weight.step<kSteps>();
        out.step<kSteps>();
        residual.step<kSteps>();
    }
};

}  // namespace
}  // namespace ramet
