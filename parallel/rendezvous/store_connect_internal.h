// How the processes of a job serve a store and connect to it: over an abstract Unix socket on one host, where both ends compare
// the other's user, which the kernel tells, and over TCP with TLS between hosts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/rendezvous/socket_internal.h"
#include "lockstep/parallel/rendezvous/store_client_internal.h"
#include "lockstep/parallel/rendezvous/tcp_store.h"

namespace lockstep::parallel {

// --- Unix sockets -----------------------------------------------------------------------------------------------------

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

// --- TCP --------------------------------------------------------------------------------------------------------------

// What a side needs to be let in: the key of one store of one job.
struct TcpCredentials {
  std::string token_source = {};  // for messages: "the variable LOCKSTEP_JOB_TOKEN"; empty without authentication
  std::string job = {};
  JobId id = {};
  std::shared_ptr<const TlsContext> tls = nullptr;  // null without authentication
};

// Throws InvalidArgument where `options` authenticate and neither they nor the environment have a token.
void check_token(const TcpStoreOptions& options);
// For the store at this port. Throws as check_token does.
TcpCredentials make_credentials(const TcpStoreOptions& options, int port);

// The server over TCP. `listener` as from listen_tcp. Throws CommError where thread or descriptors cannot be had.
std::unique_ptr<StoreServer> serve_tcp(Descriptor listener, const TcpCredentials& credentials);

// Connects once and shakes hands. kNobody, kClosed, kSilent and kOtherJob come with a detail.
ConnectResult connect_tcp_store(const TcpAddress& address, const TcpCredentials& credentials, Deadline deadline);
// Tries all addresses in turn, each for the time `each`: the first kConnected, or else the outcome that says most. `reached`
// is the address that it comes from.
ConnectResult connect_any(const std::vector<TcpAddress>& addresses, const TcpCredentials& credentials,
                          std::chrono::milliseconds each, TcpAddress& reached);
// The message after a result other than kConnected from `where`: "127.0.0.1:29500".
std::string describe_tcp(const ConnectResult& result, const std::string& where, const TcpCredentials& credentials);

// The store of a client; `result` with kConnected from `address`.
std::shared_ptr<StoreClient> make_tcp_store(const TcpAddress& address, const TcpCredentials& credentials,
                                            ConnectResult result);

}  // namespace lockstep::parallel
