// Process groups for tests, so that one test runs on every backend.
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

// Returns a name for a group of forked ranks, different at each call and in each process.
inline std::string fresh_group() {
  static int groups = 0;
  return "test " + std::to_string(getpid()) + " " + std::to_string(groups++);
}

// Sets the address at which this host's ranks meet. No server listens at the port; the address is only part of a name.
inline void set_master(const std::string& group) {
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", std::to_string(1024 + std::hash<std::string>()(group) % 64000).c_str(), 1);
}

// Runs fn on `size` ranks that share a group of the backend: threads for local, processes for all others.
inline void with_group(const std::string& backend, int size, const std::function<void(const Group& group)>& fn,
                       ls::parallel::InitOptions options = {}) {
  if (backend == "local") return with_threads(backend, size, fn, options);
  options.backend = backend;
  options.world_size = size;
  if (options.timeout == ls::parallel::InitOptions().timeout) options.timeout = std::chrono::seconds(30);
  if (options.group_name.empty()) options.group_name = fresh_group();
  check_processes(size, [&](int rank) {
    set_master(options.group_name);
    ls::parallel::InitOptions own = options;
    own.rank = rank;
    fn(ls::parallel::init_process_group(own));
  });
}
