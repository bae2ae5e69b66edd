// How work is cut into tasks for the threads of the pool.
#pragma once

#include "common.h"
#include "threads.h"

namespace ramet {

// Enough that no thread waits long for the last task of another.
constexpr int kTasksPerThread = 4;

// Panels of a task: some tasks for each thread, as many for one as for another where that can be.
static inline int panels_per_task(int num_panels, int num_threads) {
    const int fewest = larger(1, num_panels / (num_threads * kTasksPerThread));
    for (int panels = fewest; panels < 2 * fewest; ++panels) {
        if (ceil_div(num_panels, panels) % num_threads == 0) return panels;
    }
    return fewest;
}

// body(first_panel, last_panel, first_row, last_row) over all panels of a weight and all rows, where rows of
// block_bytes stay in a cache while panels pass by.
template <class Body>
void run_panels_and_rows(ThreadPool& pool, int num_panels, int num_rows, std::size_t row_bytes,
                         std::size_t block_bytes, const Body& body) {
    const int block_rows = static_cast<int>(
        larger<std::size_t>(1, block_bytes / row_bytes / kBlockRows) * kBlockRows);
    const int num_blocks = ceil_div(num_rows, block_rows);
    const int panels = panels_per_task(num_panels, pool.size());
    const int num_pieces = ceil_div(num_panels, panels);
    pool.run(num_blocks * num_pieces, [&](int task, int) {
        const int block = task / num_pieces, first_panel = task % num_pieces * panels;
        body(first_panel, smaller(num_panels, first_panel + panels), block * block_rows,
             smaller(num_rows, (block + 1) * block_rows));
    });
}

}  // namespace ramet
