#include "threads.h"

#include <chrono>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif
#include <unistd.h>

namespace ramet {
namespace {

constexpr std::size_t kAlignment = 64;
// Longer than an engine needs to prepare its next step: a thread that sleeps then finds somebody else in its
// place when it is woken, and a step waits for a scheduler's tick.
constexpr auto kPollTime = std::chrono::microseconds(4000);
// Where threads are more than processors, those that poll keep others from working.
constexpr auto kCrowdedPollTime = std::chrono::microseconds(60);
constexpr std::uint64_t kEpoch = std::uint64_t{1} << 32;

std::uint32_t epoch_of(std::uint64_t state) { return static_cast<std::uint32_t>(state >> 32); }
std::uint32_t workers_in(std::uint64_t state) { return static_cast<std::uint32_t>(state); }

// Denormals as zero, so that no value takes a slow path and no thread's inherited mode changes a bit.
class FlushDenormals {
  public:
#if defined(__x86_64__)
    FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(0x9fc0); }
    ~FlushDenormals() { _mm_setcsr(saved_); }

  private:
    unsigned saved_;
#endif
};

void pause() {
#if defined(__x86_64__)
    _mm_pause();
#endif
}

// Polls until the condition holds, for so long at most.
template <class Condition>
bool poll(std::chrono::microseconds time, const Condition& condition) {
    const auto start = std::chrono::steady_clock::now();
    do {
        for (int i = 0; i < 32; ++i) {
            if (condition()) return true;
            pause();
        }
    } while (std::chrono::steady_clock::now() - start < time);
    return condition();
}

}  // namespace

void* Scratch::reserve(std::size_t bytes) {
    if (bytes > size_) {
        memory_.reset();
        memory_.reset(new std::byte[bytes + kAlignment]);
        size_ = bytes;
    }
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.get());
    return reinterpret_cast<void*>((address + kAlignment - 1) & ~(kAlignment - 1));
}

ThreadPool::ThreadPool(int num_threads)
    : size_(num_threads),
      owner_process_(::getpid()),
      poll_time_(static_cast<unsigned>(num_threads) <= std::thread::hardware_concurrency()
                     ? kPollTime
                     : kCrowdedPollTime),
      thread_scratch_(num_threads) {
    for (int thread = 1; thread < size_; ++thread) {
        threads_.emplace_back([this, thread] { work(thread); });
    }
}

ThreadPool::~ThreadPool() {
    if (::getpid() != owner_process_) {
        // A forked child has none of the threads: nothing to stop, and nothing to wait for.
        for (auto& thread : threads_) thread.detach();
        return;
    }
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stop_ = true;
    }
    job_published_.notify_all();
    for (auto& thread : threads_) thread.join();
}

void ThreadPool::run_erased(int num_tasks, Function function, const void* context) {
    const FlushDenormals mode;
    if (num_tasks <= 1 || size_ == 1) {
        for (int task = 0; task < num_tasks; ++task) function(context, task, 0);
        return;
    }
    function_ = function;
    context_ = context;
    num_tasks_ = num_tasks;
    next_task_.store(0, std::memory_order_relaxed);
    state_.fetch_add(kEpoch);
    if (num_sleeping_.load() > 0) {
        std::lock_guard<std::mutex> lock(mutex_);
        job_published_.notify_all();
    }
    claim_tasks(0);
    state_.fetch_add(kEpoch);
    wait_for_workers();
}

void ThreadPool::claim_tasks(int thread) {
    for (;;) {
        const int task = next_task_.fetch_add(1, std::memory_order_relaxed);
        if (task >= num_tasks_) return;
        function_(context_, task, thread);
    }
}

void ThreadPool::wait_for_workers() {
    const auto done = [this] { return workers_in(state_.load()) == 0; };
    if (poll(poll_time_, done)) return;
    std::unique_lock<std::mutex> lock(mutex_);
    caller_sleeps_ = true;
    workers_left_.wait(lock, done);
    caller_sleeps_ = false;
}

std::uint64_t ThreadPool::wait_for_job(std::uint32_t seen) {
    const auto ready = [this, seen] {
        const std::uint32_t epoch = epoch_of(state_.load());
        return stop_.load() || (epoch != seen && (epoch & 1u));
    };
    if (!poll(poll_time_, ready)) {
        std::unique_lock<std::mutex> lock(mutex_);
        ++num_sleeping_;
        job_published_.wait(lock, ready);
        --num_sleeping_;
    }
    return state_.load();
}

void ThreadPool::work(int thread) {
    const FlushDenormals mode;
    std::uint32_t seen = 0;
    for (;;) {
        std::uint64_t state = wait_for_job(seen);
        if (stop_) return;
        const std::uint32_t epoch = epoch_of(state);
        if (!(epoch & 1u)) continue;
        // Enter only while the job is open; once inside, the caller waits for us.
        bool entered = false;
        while (epoch_of(state) == epoch && !entered) {
            entered = state_.compare_exchange_weak(state, state + 1);
        }
        if (!entered) continue;
        seen = epoch;
        claim_tasks(thread);
        state_.fetch_sub(1);
        if (caller_sleeps_.load()) {
            std::lock_guard<std::mutex> lock(mutex_);
            workers_left_.notify_one();
        }
    }
}

}  // namespace ramet
