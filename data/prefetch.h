/// \file
/// Worker threads that run jobs ahead of their consumer and return the results in the order of the jobs.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/base/callback.h"

namespace lockstep::data {

/// Only one thread at a time may consume. The destructor waits for running jobs only.
class Prefetcher {
 public:
  /// A job, called with its number by several threads at once.
  using Job = Callback<std::shared_ptr<void>(std::int64_t)>;

  /// Runs job(first), ..., job(last - 1) on `workers` threads, at most `ahead` jobs ahead of the consumer. Throws
  /// DeviceError if the system cannot create the threads.
  Prefetcher(int workers, std::int64_t ahead, std::int64_t first, std::int64_t last, Job job);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// Waits for the next job and returns its result, or rethrows its exception. May be called last - first times.
  std::shared_ptr<void> next();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::data
