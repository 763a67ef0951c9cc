// The server of a store: this process holds the table, and a thread answers clients over the sockets of a listener.
//
// A client's first frame is a hello with the client's job; requests follow. Over TCP the frames are sent in TLS, after
// its handshake. A peer whose hello has not arrived is unauthenticated: its bytes, its time, and the number of such
// peers are limited (limits_internal.h). When all places are taken, the server rejects the oldest of these
// connections, and one that has proven the token only after all others.
#pragma once

#include <memory>
#include <thread>

#include "lockstep/parallel/rendezvous/socket_internal.h"
#include "lockstep/parallel/rendezvous/store_protocol_internal.h"
#include "lockstep/parallel/rendezvous/tls_internal.h"

namespace lockstep::parallel {

struct StoreServerOptions {
  JobId job = {};
  // For a Unix socket: clients must be processes of this user or of root. Rejected clients receive the reason.
  bool is_one_host = false;
  std::shared_ptr<const TlsContext> tls = nullptr;  // null: frames are sent unencrypted
};

// The store in the process that holds the table, until destruction; the clients' calls then fail. A client that breaks
// the protocol loses its connection, and the other clients continue. Calls of this process's threads need no
// connection, so they succeed however many connections wait.
class StoreServer final : public Store {
 public:
  // `listener` is from listen_abstract or listen_tcp. Throws CommError if the thread or the descriptors cannot be
  // created.
  StoreServer(Descriptor listener, StoreServerOptions options);
  ~StoreServer() override;

  std::string request(const StoreRequest& request, std::chrono::milliseconds timeout) override;
  std::unique_ptr<LastWill> leave_last_will(const std::vector<std::string>& keys, const std::string& value) override;

 private:
  class Loop;
  std::shared_ptr<Loop> loop_;
  std::thread thread_;
};

}  // namespace lockstep::parallel
