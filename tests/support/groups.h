// Process groups for tests: the same test runs over every backend.
#pragma once

#include <unistd.h>

#include <functional>
#include <memory>
#include <string>

#include "tests/support/ranks.h"
#include "tests/support/testing.h"

using Group = std::shared_ptr<ls::parallel::ProcessGroup>;

// Runs fn on `size` threads of this process that share a group of the backend.
inline void with_threads(const std::string& backend, int size, const std::function<void(const Group& group)>& fn,
                         ls::parallel::InitOptions options = {}) {
  options.backend = backend;
  options.world_size = size;
  options.store = std::make_shared<ls::parallel::InProcessStore>();
  if (options.timeout == ls::parallel::InitOptions().timeout) options.timeout = std::chrono::seconds(30);
  run_threads(size, [&](int rank) {
    ls::parallel::InitOptions own = options;
    own.rank = rank;
    fn(ls::parallel::init_process_group(own));
  });
}

// The name of a job for forked ranks, another one at each call and in each process.
inline std::string fresh_job() {
  static int jobs = 0;
  return "test " + std::to_string(getpid()) + " " + std::to_string(jobs++);
}

// Ranks of this host with the same job meet each other, and nobody else.
inline void set_job(const std::string& job) {
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", "29500", 1);  // part of a name only: on one host nobody listens at it
  setenv("TORCHELASTIC_RUN_ID", job.c_str(), 1);
}

// Runs fn on `size` ranks that share a group of the backend: threads for local, processes for all others.
inline void with_group(const std::string& backend, int size, const std::function<void(const Group& group)>& fn,
                       ls::parallel::InitOptions options = {}) {
  if (backend == "local") return with_threads(backend, size, fn, options);
  options.backend = backend;
  options.world_size = size;
  if (options.timeout == ls::parallel::InitOptions().timeout) options.timeout = std::chrono::seconds(30);
  const std::string job = fresh_job();
  check_processes(size, [&](int rank) {
    set_job(job);
    ls::parallel::InitOptions own = options;
    own.rank = rank;
    fn(ls::parallel::init_process_group(own));
  });
}
