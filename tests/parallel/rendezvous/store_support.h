// Servers of Unix and TCP stores with clients, in one process.
#pragma once

#include <unistd.h>

#include <memory>
#include <string>

#include "lockstep/parallel/rendezvous/store.h"
#include "lockstep/parallel/rendezvous/store_client_internal.h"

namespace ls = lockstep;
namespace par = lockstep::parallel;

// An address that no other test uses, at once or before.
inline par::UnixStoreOptions fresh_store() {
  static int count = 0;
  const std::string name = "lockstep-test-" + std::to_string(getpid()) + "-" + std::to_string(count++);
  return {.socket = name, .address = "test:1", .job = {1, 2}};
}

inline std::unique_ptr<par::StoreServer> serve(const par::UnixStoreOptions& options) {
  return std::make_unique<par::StoreServer>(par::listen_abstract(options.socket),
                                            par::StoreServerOptions{.job = options.job, .is_one_host = true});
}

inline std::shared_ptr<par::StoreClient> client_of(const par::UnixStoreOptions& options) {
  return par::make_unix_store(options, par::connect_unix(options, par::Deadline(std::chrono::seconds(10))));
}

// In the folder that the test runs in, and not there yet.
inline std::string fresh_path() {
  static int count = 0;
  return "file-store-" + std::to_string(getpid()) + "-" + std::to_string(count++);
}

inline const std::string kToken = "0123456789abcdef0123456789abcdef";

inline par::TcpStoreOptions tcp_options(bool is_server) {
  return {.is_server = is_server, .token = kToken, .job = "run 1/0/2", .timeout = std::chrono::seconds(30)};
}

// A store over TCP with its server, on a free port.
inline std::shared_ptr<par::TcpStore> tcp_server() {
  return std::make_shared<par::TcpStore>("127.0.0.1", 0, tcp_options(true));
}
inline std::shared_ptr<par::TcpStore> tcp_client(const par::TcpStore& server) {
  return std::make_shared<par::TcpStore>("127.0.0.1", server.port(), tcp_options(false));
}
