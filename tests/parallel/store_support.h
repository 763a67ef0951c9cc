// A Unix store's server with clients, in one process.
#pragma once

#include <unistd.h>

#include <memory>
#include <string>

#include "lockstep/parallel/unix_store.h"

namespace par = lockstep::parallel;

// An address that no other test uses, at once or before.
inline par::UnixStoreOptions fresh_store(int size = 2) {
  static int count = 0;
  const std::string name = "lockstep-test-" + std::to_string(getpid()) + "-" + std::to_string(count++);
  return {.socket = name, .address = "test:1", .job = {1, 2}, .rank = 0, .size = size};
}

inline std::unique_ptr<par::UnixStoreServer> serve(const par::UnixStoreOptions& options) {
  return std::make_unique<par::UnixStoreServer>(par::listen_abstract(options.socket), options.job, options.size);
}

inline std::shared_ptr<par::UnixStore> client_of(const par::UnixStoreOptions& options) {
  return std::make_shared<par::UnixStore>(options, par::greet(options, par::Deadline(std::chrono::seconds(10))));
}
