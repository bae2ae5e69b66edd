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

}  // namespace ramet
