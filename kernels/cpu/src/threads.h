// One pool of threads: tasks are claimed one by one, so a thread that is late never holds up the rest.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace ramet {

// Memory aligned to cache lines that grows and is reused.
class Scratch {
  public:
    // At least that many bytes; earlier contents are lost when it grows.
    void* reserve(std::size_t bytes);

  private:
    std::unique_ptr<std::byte[]> memory_;
    std::size_t size_ = 0;
};

// The calling thread works too, so a pool of n starts n - 1 threads. A worker waits for the next job by
// polling for some milliseconds, then sleeps. A job is over when its tasks are, whether or not
// every worker woke up for it. All arithmetic runs with denormals as zero.
class ThreadPool {
  public:
    explicit ThreadPool(int num_threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int size() const { return size_; }

    // body(task, thread) for every task in [0, num_tasks), thread in [0, size()). It must not throw.
    template <class Body>
    void run(int num_tasks, const Body& body) {
        run_erased(
            num_tasks,
            [](const void* context, int task, int thread) {
                (*static_cast<const Body*>(context))(task, thread);
            },
            &body);
    }

    // A thread's own scratch; to be sized before the job that uses it.
    Scratch& thread_scratch(int thread) { return thread_scratch_[thread]; }
    // Scratch of the op in progress, by purpose; ops run one at a time.
    Scratch& activations() { return activations_; }
    Scratch& partials() { return partials_; }

    // Held by whoever runs an op.
    std::mutex& op_mutex() { return op_mutex_; }

  private:
    using Function = void (*)(const void*, int, int);

    void run_erased(int num_tasks, Function function, const void* context);
    void work(int thread);
    void claim_tasks(int thread);
    std::uint64_t wait_for_job(std::uint32_t seen);
    void wait_for_workers();

    const int size_;
    const long owner_process_;
    const std::chrono::microseconds poll_time_;
    std::vector<std::thread> threads_;
    std::vector<Scratch> thread_scratch_;
    Scratch activations_, partials_;
    std::mutex op_mutex_;

    // The job, written before its epoch is published and left alone until every worker has left it.
    Function function_ = nullptr;
    const void* context_ = nullptr;
    int num_tasks_ = 0;

    // High half: the epoch, odd while a job is open. Low half: workers inside it.
    alignas(64) std::atomic<std::uint64_t> state_{0};
    alignas(64) std::atomic<int> next_task_{0};
    alignas(64) std::atomic<bool> stop_{false};
    std::atomic<int> num_sleeping_{0};
    std::atomic<bool> caller_sleeps_{false};
    std::mutex mutex_;
    std::condition_variable job_published_, workers_left_;
};

}  // namespace ramet
