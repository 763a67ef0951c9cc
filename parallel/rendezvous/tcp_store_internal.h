// The steps that TcpStore consists of, for a rendezvous, which has a say in what happens between them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/rendezvous/deadline_internal.h"
#include "lockstep/parallel/rendezvous/store_client_internal.h"
#include "lockstep/parallel/rendezvous/store_server_internal.h"
#include "lockstep/parallel/rendezvous/tcp_handshake_internal.h"
#include "lockstep/parallel/rendezvous/tcp_socket_internal.h"
#include "lockstep/parallel/rendezvous/tcp_store.h"

namespace lockstep::parallel {

// The identity that `options` and the environment give. Throws InvalidArgument without a token to authenticate with.
TcpIdentity identity_of(const TcpStoreOptions& options);

// The server over TCP. `listener` as from listen_tcp. Throws CommError where thread or descriptors cannot be had.
std::unique_ptr<StoreServer> serve_tcp(Descriptor listener, TcpIdentity identity);

// Connects once and shakes hands. kNobody, kGone, kSilent and kOtherJob come with a detail.
Greeting greet_tcp(const TcpAddress& address, const TcpIdentity& identity, Deadline deadline);
// Tries all addresses in turn, each for the time `each`: the first kYes, or else what looked most like a store.
// `reached` is the address that it comes from.
Greeting greet_any(const std::vector<TcpAddress>& addresses, const TcpIdentity& identity,
                   std::chrono::milliseconds each, TcpAddress& reached);
// Goes on until the server is there. `asked`, "host:port", is for messages. Throws CommError where it is of another job,
// CommTimeout where there is none.
Greeting reach_tcp(const std::vector<TcpAddress>& addresses, const TcpIdentity& identity,
                   std::chrono::milliseconds timeout, const std::string& asked, TcpAddress& reached);
// What a user reads after a greeting other than kYes from `where`: "127.0.0.1:29500".
std::string describe_tcp(const Greeting& greeting, const std::string& where, const TcpIdentity& identity);

struct TcpStore::State {
  TcpAddress address;  // of the server
  TcpIdentity identity;
  std::unique_ptr<StoreServer> server;  // where this store has it
  std::unique_ptr<StoreClient> client;

  void connect(Greeting greeting);  // sets the client
};

// What a rendezvous needs of a TcpStore and users do not.
struct TcpMeeting {
  // `greeting` with kYes from `address`.
  static std::shared_ptr<TcpStore> make(const TcpAddress& address, TcpIdentity identity, Greeting greeting,
                                        std::unique_ptr<StoreServer> server = nullptr);
};

}  // namespace lockstep::parallel
