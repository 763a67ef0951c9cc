// The store of the processes of one host: rank 0 has a thread that holds the table (UnixStoreServer), and every rank is a
// client of it (UnixStore) over an abstract Unix socket. Both ends look at the other's user first; the kernel vouches for
// it. What comes after that is checked all the same: a peer may be another run, or another program.
//
// Internal to parallel/: users reach it through init_process_group.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/rendezvous/deadline_internal.h"
#include "lockstep/parallel/rendezvous/socket_internal.h"
#include "lockstep/parallel/rendezvous/store.h"
#include "lockstep/parallel/rendezvous/store_client_internal.h"
#include "lockstep/parallel/rendezvous/store_frames_internal.h"
#include "lockstep/parallel/rendezvous/store_server_internal.h"

namespace lockstep::parallel {

// The server over a Unix socket. `listener` as from listen_abstract. Throws CommError where thread or descriptors cannot
// be had.
class UnixStoreServer {
 public:
  UnixStoreServer(Descriptor listener, const JobId& job);

 private:
  StoreServer server_;
};

struct UnixStoreOptions {
  std::string socket;   // its abstract name
  std::string address;  // for messages: "127.0.0.1:29500"
  JobId job;
};

// Connects once and says hello.
Greeting greet(const UnixStoreOptions& options, Deadline deadline);

class UnixStore final : public Store {
 public:
  // `greeting` with kYes. With a `server`, the store owns it, and it ends with the store.
  UnixStore(UnixStoreOptions options, Greeting greeting, std::unique_ptr<UnixStoreServer> server = nullptr);
  ~UnixStore() override;
  std::string request(const StoreRequest& request, std::chrono::milliseconds timeout) override;
  std::unique_ptr<LastWill> leave_last_will(const std::vector<std::string>& keys, const std::string& value) override;

 private:
  std::unique_ptr<UnixStoreServer> server_;
  StoreClient client_;
};

}  // namespace lockstep::parallel
