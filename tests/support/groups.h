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

// Runs fn on `size` ranks that share a group of the backend: threads for local, processes for all others.
inline void with_group(const std::string& backend, int size, const std::function<void(const Group& group)>& fn,
                       ls::parallel::InitOptions options = {}) {
  if (backend == "local") return with_threads(backend, size, fn, options);
  options.backend = backend;
  options.world_size = size;
  if (options.timeout == ls::parallel::InitOptions().timeout) options.timeout = std::chrono::seconds(30);
  static int groups = 0;  // forked ranks meet by a name of their own
  const std::string port = std::to_string(10000 + (getpid() * 16 + groups++) % 50000);
  check_processes(size, [&](int rank) {
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", port.c_str(), 1);
    ls::parallel::InitOptions own = options;
    own.rank = rank;
    fn(ls::parallel::init_process_group(own));
  });
}
