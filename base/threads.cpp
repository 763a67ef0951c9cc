#include "lockstep/base/threads.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/check_internal.h"
#include "lockstep/base/device.h"
#include "lockstep/base/environment_internal.h"
#include "lockstep/base/spin_internal.h"

namespace lockstep {

namespace {

int default_threads() {
  if (const auto count = environment_number("LOCKSTEP_NUM_THREADS", 1, 1024)) return *count;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return 1;
  return std::max(CPU_COUNT(&cores), 1);
}

// One job at a time. Each thread has a range of the chunks, the same one in every job of that length, so that what it
// wrote is still in its caches; then it takes chunks of the other ranges. Workers wait for the next job, and the
// caller for the last worker, by spinning for a while before they sleep: waking a thread takes longer than most jobs.
class Pool {
 public:
  explicit Pool(int helpers)
      : turns_(helpers < usable_cores() ? kTurns : 0), ranges_(static_cast<std::size_t>(helpers) + 1) {
    try {
      for (int i = 1; i <= helpers; ++i) threads_.emplace_back([this, i] { work(static_cast<std::size_t>(i)); });
    } catch (const std::system_error& error) {
      stop();
      throw DeviceError(fmt::format("the CPU pool cannot start {} threads: {}; set LOCKSTEP_NUM_THREADS to fewer",
                                    helpers, error.what()));
    }
  }
  ~Pool() { stop(); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Rethrows the exception of the lowest chunk that threw, after all threads have left `body`.
  void run(std::int64_t chunks, void (*body)(void*, std::int64_t), void* context) {
    body_ = body;
    context_ = context;
    const std::int64_t count = std::ssize(ranges_);
    for (std::int64_t i = 0; i < count; ++i) {
      Range& range = ranges_[static_cast<std::size_t>(i)];
      range.next.store(i * chunks / count, std::memory_order_relaxed);
      range.end = (i + 1) * chunks / count;
    }
    failed_.store(chunks, std::memory_order_relaxed);
    gate_.store(kOpen, std::memory_order_release);
    announce();
    take_chunks(0);
    gate_.fetch_and(~kOpen, std::memory_order_acq_rel);  // a worker that wakes late finds no job
    for (std::uint32_t inside; (inside = gate_.load(std::memory_order_acquire)) != 0;) wait_while(gate_, inside);
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  static constexpr int kTurns = 10 * Spin::kTurns;  // longer than most pauses between the jobs of a training step
  static constexpr std::uint32_t kOpen = 1U << 31;

  void stop() {
    stop_ = true;
    announce();
    for (auto& thread : threads_) thread.join();
  }

  void announce() {
    jobs_.fetch_add(1, std::memory_order_release);
    jobs_.notify_all();
  }

  void wait_while(const std::atomic<std::uint32_t>& value, std::uint32_t old) const {
    for (Spin spin(turns_, /*yields=*/true); value.load(std::memory_order_acquire) == old;) {
      if (!spin.next()) return value.wait(old, std::memory_order_acquire);
    }
  }

  // Takes chunks of the ranges, that of `first` first.
  void take_chunks(std::size_t first) {
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
      Range& range = ranges_[(first + i) % ranges_.size()];
      for (std::int64_t chunk; (chunk = range.next.fetch_add(1, std::memory_order_relaxed)) < range.end;) {
        if (chunk < failed_.load(std::memory_order_relaxed)) run_chunk(chunk);
      }
    }
  }
  void run_chunk(std::int64_t chunk) {
    try {
      body_(context_, chunk);
    } catch (...) {
      fail(chunk, std::current_exception());
    }
  }

  // All chunks below a failed one still run, so the error that is kept does not depend on time.
  void fail(std::int64_t chunk, std::exception_ptr error) {
    const std::lock_guard lock(failing_);
    if (chunk >= failed_.load(std::memory_order_relaxed)) return;
    failed_.store(chunk, std::memory_order_relaxed);
    error_ = std::move(error);
  }

  // Returns whether there is a job. Its caller then waits for `leave`.
  bool enter() {
    std::uint32_t gate = gate_.load(std::memory_order_acquire);
    while (gate & kOpen) {
      if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel)) return true;
    }
    return false;
  }
  void leave() {
    if (gate_.fetch_sub(1, std::memory_order_acq_rel) == 1) gate_.notify_one();
  }

  void work(std::size_t index) {
    for (std::uint32_t seen = 0;;) {
      wait_while(jobs_, seen);
      seen = jobs_.load(std::memory_order_acquire);
      if (stop_) return;
      if (!enter()) continue;
      take_chunks(index);
      leave();
    }
  }

  // Chunks [next, end) have not been taken.
  struct alignas(64) Range {
    std::atomic<std::int64_t> next{0};
    std::int64_t end = 0;
  };

  const int turns_;
  std::atomic<std::uint32_t> jobs_{0};  // number of jobs so far
  // kOpen while workers may begin with the job, plus the number of workers inside. The job's members below change only
  // while this is 0.
  std::atomic<std::uint32_t> gate_{0};
  void (*body_)(void*, std::int64_t) = nullptr;
  void* context_ = nullptr;
  std::vector<Range> ranges_;  // of the caller and the workers
  std::mutex failing_;
  std::atomic<std::int64_t> failed_{0};  // the lowest chunk that threw
  std::exception_ptr error_;
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;  // the last member: they use the others
};

// The pool and its busy flag. `busy` also covers nested calls: an operation inside a chunk runs on that chunk's
// thread.
struct PoolState {
  explicit PoolState(int count) : threads(count) {}
  std::mutex busy;
  std::unique_ptr<Pool> pool;
  std::atomic<int> threads;
};

PoolState* make_state();

PoolState*& state() {
  static PoolState* instance = make_state();
  return instance;
}

PoolState* make_state() {
  auto made = std::make_unique<PoolState>(default_threads());  // first, because it may throw
  // A forked child has none of the threads: it leaves the parent's pool (and its locks) untouched and starts another
  // pool.
  pthread_atfork(nullptr, nullptr, [] { state() = new PoolState(state()->threads.load()); });
  return made.release();
}

}  // namespace

int num_threads() { return state()->threads.load(std::memory_order_relaxed); }

void set_num_threads(int count) {
  LOCKSTEP_CHECK(count >= 1, "set_num_threads: {} threads, expected at least 1", count);
  const std::lock_guard lock(state()->busy);
  state()->pool.reset();
  state()->threads.store(count);
}

void parallel_for(std::int64_t chunks, void (*body)(void*, std::int64_t), void* context) {
  PoolState& shared = *state();
  if (chunks > 1 && shared.threads.load(std::memory_order_relaxed) > 1 && shared.busy.try_lock()) {
    const std::lock_guard lock(shared.busy, std::adopt_lock);
    if (!shared.pool) shared.pool = std::make_unique<Pool>(shared.threads.load() - 1);
    shared.pool->run(chunks, body, context);
    return;
  }
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) body(context, chunk);
}

}  // namespace lockstep
