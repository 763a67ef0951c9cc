// How processes connect to a store that a server holds (StoreServer): over an abstract Unix socket on one host, where
// each end checks the user of the other end with the kernel, and over TCP with TLS between hosts.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/parallel/rendezvous/deadline_internal.h"
#include "lockstep/parallel/rendezvous/socket_internal.h"
#include "lockstep/parallel/rendezvous/store.h"
#include "lockstep/parallel/rendezvous/store_protocol_internal.h"
#include "lockstep/parallel/rendezvous/store_server_internal.h"
#include "lockstep/parallel/rendezvous/tls_internal.h"

namespace lockstep::parallel {

// --- one connection -------------------------------------------------------------------------------------------------

// How an attempt to connect to a store ended. Among several addresses the largest value is the most specific.
enum class ConnectOutcome {
  kConnected,
  kNobody,        // no process listens at the address
  kBusy,          // the server's queue of connections is full
  kClosed,        // the server closed the connection before it replied
  kExhausted,     // the server's process has run out of file descriptors
  kSilent,        // the server accepted and does not reply
  kOtherUser,     // the server belongs to another user
  kOtherVersion,  // the server runs another version of Lockstep
  kOtherJob,      // the server is of another job (over TCP: or has another token, or is no store)
};

struct ConnectResult {
  ConnectOutcome outcome = ConnectOutcome::kNobody;
  Peer server = {};  // process of the server of a Unix socket
  // The server's id (with kConnected) or version, the resource that its process has run out of, the system's error, or
  // the protocol error.
  std::string detail = {};
  std::unique_ptr<Stream> stream = nullptr;  // with kConnected
};

// Sends the hello over a new stream, and reads the server's reply.
ConnectResult say_hello(std::unique_ptr<Stream> stream, const JobId& job, Deadline& deadline);

// --- the client -----------------------------------------------------------------------------------------------------

// Concurrent requests use separate connections, so that no thread waits for another's request.
class StoreClient final : public Store {
 public:
  using Connect = std::function<ConnectResult(Deadline)>;
  // For messages: the address, "127.0.0.1:29500", and the process that holds the store, "rank 0 (process 12)". `first`
  // must be kConnected. Concurrent calls make further connections with `connect`, and so do calls after the idle
  // connections have ended, as when hosts are disconnected for long.
  StoreClient(std::string address, std::string holder, ConnectResult first, Connect connect);

  std::string request(const StoreRequest& request, std::chrono::milliseconds timeout) override;
  // The entry may outlive this client.
  std::unique_ptr<LastWill> leave_last_will(const std::vector<std::string>& keys, const std::string& value) override;

 private:
  using milliseconds = std::chrono::milliseconds;
  // `what` is for messages: `get "key"`.
  StoreMessage exchange(Stream& stream, const StoreRequest& request, const std::string& what,
                        milliseconds timeout) const;
  std::unique_ptr<Stream> take_stream(const std::string& what, milliseconds timeout);
  std::unique_ptr<Stream> reconnect(const std::string& what, milliseconds timeout) const;
  [[noreturn]] void raise_lost(const std::string& what, const std::string& detail = "") const;
  [[noreturn]] void raise_silent(const std::string& what, milliseconds timeout) const;

  const std::string address_, holder_, server_id_;
  const Connect connect_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Stream>> idle_;  // guarded by mutex_
};

// --- Unix sockets ---------------------------------------------------------------------------------------------------

struct UnixStoreOptions {
  std::string socket;   // abstract name of the socket
  std::string address;  // for messages: "127.0.0.1:29500"
  JobId job;
};

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

// The credentials of the store at this port. Throws InvalidArgument if `options` authenticate and neither `options`
// nor the environment has a token.
TcpCredentials make_credentials(const TcpStoreOptions& options, int port);

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
