// Jobs run ahead of their consumer by worker threads; results come back in the order of the jobs.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/tensor/callback.h"

namespace lockstep::data {

// One thread at a time consumes. Destroying it midway waits only for the jobs that are running.
class Prefetcher {
 public:
  // Called with the job's number, by several threads at once.
  using Job = Callback<std::shared_ptr<void>(std::int64_t)>;

  // Runs job(first), ..., job(last - 1) on `workers` threads, at most `ahead` jobs before the consumer.
  // Throws DeviceError where the system gives no more threads.
  Prefetcher(int workers, std::int64_t ahead, std::int64_t first, std::int64_t last, Job job);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // Waits for the next job and returns what it returned, or throws what it threw. To be called last - first times.
  std::shared_ptr<void> next();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::data
