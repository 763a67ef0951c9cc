// The server of a store: a thread that holds the table and answers clients over the sockets of a listener.
//
// A client's first frame is a hello with the job that it belongs to; requests follow. Over TCP the frames travel in TLS, whose
// handshake comes before. A peer whose hello has not come is unauthenticated: its bytes, its time, and the number of such peers
// are limited (limits_internal.h). When all places are taken, the peer that has been connected longest is rejected, but one that
// has proven to have the token only after all others.
#pragma once

#include <memory>
#include <thread>

#include "lockstep/parallel/rendezvous/socket_internal.h"
#include "lockstep/parallel/rendezvous/store_protocol_internal.h"
#include "lockstep/parallel/rendezvous/tls_internal.h"

namespace lockstep::parallel {

struct StoreServerOptions {
  JobId job = {};
  // Of a Unix socket: clients must be processes of this user, or of root. They hear why they are refused.
  bool is_one_host = false;
  std::shared_ptr<const TlsContext> tls = nullptr;  // null: frames travel as they are
};

// Holds the table until it is destroyed; the clients' calls then fail. Never throws after construction: a client that
// breaks the protocol loses its connection, the others continue.
class StoreServer {
 public:
  // Throws CommError where thread or descriptors cannot be had.
  StoreServer(Descriptor listener, StoreServerOptions options);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  // A connection of this process, which needs no hello. It takes no place in the listener's queue, so that no number of other
  // connections keeps this process from its own store. Throws CommError where descriptors cannot be had.
  std::unique_ptr<Stream> connect();

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

}  // namespace lockstep::parallel
