// The server of a store: a thread that holds the table and answers clients over the sockets of a listener.
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

// Holds the table until destruction; the clients' calls then fail. Never throws after construction: a client that
// breaks the protocol loses its connection, and the other clients continue.
class StoreServer {
 public:
  // Throws CommError if the thread or the descriptors cannot be created.
  StoreServer(Descriptor listener, StoreServerOptions options);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  // A connection of this process, without a hello. It bypasses the listener's queue, so that this process reaches its
  // own store however many connections wait. Throws CommError if the descriptors cannot be created.
  std::unique_ptr<Stream> connect();

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

}  // namespace lockstep::parallel
