// How the processes of a job serve a store and connect to it: over an abstract Unix socket on one host, where each end
// checks the user of the other end with the kernel, and over TCP with TLS between hosts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/rendezvous/socket_internal.h"
#include "lockstep/parallel/rendezvous/store_client_internal.h"
#include "lockstep/parallel/rendezvous/tcp_store.h"

namespace lockstep::parallel {

// --- Unix sockets ---------------------------------------------------------------------------------------------------

struct UnixStoreOptions {
  std::string socket;   // abstract name of the socket
  std::string address;  // for messages: "127.0.0.1:29500"
  JobId job;
};

// The server over a Unix socket. `listener` is from listen_abstract. Throws CommError without a thread or descriptors.
std::unique_ptr<StoreServer> serve_unix(Descriptor listener, const JobId& job);
// Connects once.
ConnectResult connect_unix(const UnixStoreOptions& options, Deadline deadline);
// The store of a client; `result` must be kConnected.
std::shared_ptr<StoreClient> make_unix_store(const UnixStoreOptions& options, ConnectResult result);

// --- TCP ------------------------------------------------------------------------------------------------------------

// The credentials of either end of a connection: the key of one store of one job.
struct TcpCredentials {
  std::string token_source = {};  // for messages: "the variable LOCKSTEP_JOB_TOKEN"; empty without authentication
  std::string job = {};
  JobId id = {};
  std::shared_ptr<const TlsContext> tls = nullptr;  // null without authentication
};

// Throws InvalidArgument if `options` authenticate and neither `options` nor the environment has a token.
void check_token(const TcpStoreOptions& options);
// The credentials of the store at this port. Throws as check_token does.
TcpCredentials make_credentials(const TcpStoreOptions& options, int port);

// The server over TCP. `listener` is from listen_tcp. Throws CommError without a thread or descriptors.
std::unique_ptr<StoreServer> serve_tcp(Descriptor listener, const TcpCredentials& credentials);

// Connects once and performs the handshake. kNobody, kClosed, kSilent and kOtherJob have a detail.
ConnectResult connect_tcp_store(const TcpAddress& address, const TcpCredentials& credentials, Deadline deadline);
// Tries all addresses in turn, each for the time `each`. Returns the first kConnected, or else the most specific
// outcome; `reached` is its address.
ConnectResult connect_any(const std::vector<TcpAddress>& addresses, const TcpCredentials& credentials,
                          std::chrono::milliseconds each, TcpAddress& reached);
// The message after a result other than kConnected from `where`: "127.0.0.1:29500".
std::string describe_tcp(const ConnectResult& result, const std::string& where, const TcpCredentials& credentials);

// The store of a client; `result` must be kConnected, from `address`.
std::shared_ptr<StoreClient> make_tcp_store(const TcpAddress& address, const TcpCredentials& credentials,
                                            ConnectResult result);

}  // namespace lockstep::parallel
