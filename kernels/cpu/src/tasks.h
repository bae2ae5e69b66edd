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
//
// Threads take turns as a rule, so that each of them walks through a stretch of panels that lie together, and
// can fetch the next ones while it is busy with those before.
template <class Body>
void run_panels_and_rows(ThreadPool& pool, int num_panels, int num_rows, std::size_t row_bytes,
                         std::size_t block_bytes, const Body& body) {
    const int block_rows = static_cast<int>(
        larger<std::size_t>(1, block_bytes / row_bytes / kBlockRows) * kBlockRows);
    const int num_blocks = ceil_div(num_rows, block_rows);
    const int panels = panels_per_task(num_panels, pool.size());
    const int num_turns = ceil_div(ceil_div(num_panels, panels), pool.size());
    const int num_tasks = num_turns * pool.size();
    pool.run(num_blocks * num_tasks, [&](int task, int) {
        const int block = task / num_tasks, turn = task % num_tasks / pool.size();
        const int first_panel = (task % pool.size() * num_turns + turn) * panels;
        if (first_panel >= num_panels) return;
        body(first_panel, smaller(num_panels, first_panel + panels), block * block_rows,
             smaller(num_rows, (block + 1) * block_rows));
    });
}

}  // namespace ramet
