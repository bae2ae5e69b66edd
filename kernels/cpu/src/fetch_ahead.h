// Memory on its way to the second-level cache while something else is multiplied: the next weights, and
// the places where an epilogue will read and write.
#pragma once

#include <cstddef>

namespace ramet {
namespace {

constexpr std::size_t kCacheLine = 64;

// Walks from `at` to `end`, some cache lines a step.
struct FetchLines {
    const char* at = nullptr;
    const char* end = nullptr;
    int num_lines = 0;

    void step() {
        if (at >= end) return;
        for (int line = 0; line < num_lines; ++line) __builtin_prefetch(at + line * kCacheLine, 0, 2);
        at += num_lines * kCacheLine;
    }
};

// Walks down the rows of a matrix, one cache line of each, some rows a step.
struct FetchRows {
    static constexpr int kRowsAStep = 3;
    const char* at = nullptr;
    std::size_t stride = 0;
    int num_rows = 0;

    void step() {
        for (int i = 0; i < kRowsAStep && num_rows > 0; ++i, --num_rows) {
            __builtin_prefetch(at, 0, 2);
            at += stride;
        }
    }
};

// A step follows each group of a product, so that memory is read evenly and arithmetic does not wait.
struct FetchAhead {
    FetchLines weight;
    FetchRows out, residual;

    void step() {
        weight.step();
        out.step();
        residual.step();
    }
};

}  // namespace
}  // namespace ramet
