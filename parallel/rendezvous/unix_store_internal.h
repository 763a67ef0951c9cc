// The store of the processes of one host: rank 0 has a thread that holds the table, and every rank is a client of it over an
// abstract Unix socket. Both ends first compare the other's user, which the kernel tells. What comes after that is checked all
// the same: a peer may be another run, or another program.
#pragma once

#include <memory>
#include <string>

#include "lockstep/parallel/rendezvous/store_client_internal.h"

namespace lockstep::parallel {

struct UnixStoreOptions {
  std::string socket;   // its abstract name
  std::string address;  // for messages: "127.0.0.1:29500"
  JobId job;
};

// The server over a Unix socket. `listener` as from listen_abstract. Throws CommError where thread or descriptors cannot
// be had.
std::unique_ptr<StoreServer> serve_unix(Descriptor listener, const JobId& job);
// Connects once.
ConnectResult connect_unix(const UnixStoreOptions& options, Deadline deadline);
// The store of a client; `result` with kConnected.
std::shared_ptr<StoreClient> make_unix_store(const UnixStoreOptions& options, ConnectResult result);

}  // namespace lockstep::parallel
