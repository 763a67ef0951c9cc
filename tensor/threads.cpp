#include "lockstep/tensor/threads.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/environment_internal.h"

namespace lockstep {

namespace {

int default_threads() {
  if (const auto count = environment_number("LOCKSTEP_NUM_THREADS", 1, 1024)) return *count;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return 1;
  return std::max(CPU_COUNT(&cores), 1);
}

// One job at a time. Workers sleep on `wake_`, take chunks by an atomic counter, and the caller takes part.
class Pool {
 public:
  explicit Pool(int helpers) {
    for (int i = 0; i < helpers; ++i) threads_.emplace_back([this] { work(); });
  }
  ~Pool() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  void run(std::int64_t chunks, void (*body)(void*, std::int64_t), void* context) {
    {
      const std::lock_guard lock(mutex_);
      body_ = body;
      context_ = context;
      chunks_ = chunks;
      next_.store(0, std::memory_order_relaxed);
      ++generation_;
    }
    wake_.notify_all();
    take_chunks(body, context, chunks);
    std::unique_lock lock(mutex_);
    body_ = nullptr;  // a worker that wakes late finds no job
    idle_.wait(lock, [this] { return active_ == 0; });
  }

 private:
  void take_chunks(void (*body)(void*, std::int64_t), void* context, std::int64_t chunks) {
    for (;;) {
      const std::int64_t chunk = next_.fetch_add(1, std::memory_order_relaxed);
      if (chunk >= chunks) return;
      body(context, chunk);
    }
  }

  void work() {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return stop_ || (generation_ != seen && body_); });
      if (stop_) return;
      seen = generation_;
      ++active_;
      const auto body = body_;
      void* const context = context_;
      const std::int64_t chunks = chunks_;
      lock.unlock();
      take_chunks(body, context, chunks);
      lock.lock();
      if (--active_ == 0) idle_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::vector<std::thread> threads_;
  void (*body_)(void*, std::int64_t) = nullptr;
  void* context_ = nullptr;
  std::int64_t chunks_ = 0;
  std::atomic<std::int64_t> next_{0};
  std::uint64_t generation_ = 0;
  int active_ = 0;
  bool stop_ = false;
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
