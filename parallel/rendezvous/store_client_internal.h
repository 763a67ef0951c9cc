// The client of a store that a server holds (StoreServer). Concurrent requests use separate connections, so that no
// thread waits for another's request. store_connect.cpp makes the connections.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/rendezvous/deadline_internal.h"
#include "lockstep/parallel/rendezvous/socket_internal.h"
#include "lockstep/parallel/rendezvous/store.h"
#include "lockstep/parallel/rendezvous/store_protocol_internal.h"
#include "lockstep/parallel/rendezvous/store_server_internal.h"

namespace lockstep::parallel {

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

// A connection after its handshake.
struct StoreConnection {
  std::unique_ptr<Stream> stream = nullptr;
  bool is_verified = false;  // the server has sent its id, which is that of all connections
};

struct ConnectResult {
  ConnectOutcome outcome = ConnectOutcome::kNobody;
  Peer server = {};  // process of the server of a Unix socket
  // The server's version, the resource that its process has run out of, the system's error, or the protocol error.
  std::string detail = {};
  StoreConnection connection = {};  // with kConnected
};

enum class Outcome { kAnswered, kClosed, kTimeout };
// Sends all of `bytes`. A closed connection counts as sent: the server may have sent a reason before it closed.
Outcome send_all(Stream& stream, const std::string& bytes, Deadline& deadline);
// Reads at most `most` bytes more into `into`.
Outcome read_some(Stream& stream, std::string& into, std::size_t most, Deadline& deadline);
// Waits until the socket is ready for `events` or closed; false at the deadline.
bool wait_for(const Descriptor& socket, short events, Deadline& deadline);

// Sends the hello over a new stream, and reads the server's reply.
ConnectResult say_hello(std::unique_ptr<Stream> stream, const JobId& job, Deadline& deadline);

class StoreClient final : public Store {
 public:
  using Connect = std::function<ConnectResult(Deadline)>;
  // For messages: the address, "127.0.0.1:29500", and the process that holds the store, "rank 0 (process 12)". `first`
  // is the first connection. Concurrent calls make further connections with `connect`, and so do calls after the idle
  // connections have ended, as when hosts are disconnected for long.
  StoreClient(std::string address, std::string holder, StoreConnection first, Connect connect);
  // The client in the process that holds the store; destroying the client ends the server.
  StoreClient(std::string address, std::unique_ptr<StoreServer> server);

  std::string request(const StoreRequest& request, std::chrono::milliseconds timeout) override;
  // The entry may outlive this client.
  std::unique_ptr<LastWill> leave_last_will(const std::vector<std::string>& keys, const std::string& value) override;

 private:
  using milliseconds = std::chrono::milliseconds;
  // `what` is for messages: `get "key"`.
  std::string ask(StoreConnection& connection, const StoreRequest& request, const std::string& what,
                  milliseconds timeout) const;
  StoreMessage exchange(StoreConnection& connection, const StoreRequest& request, const std::string& what,
                        milliseconds timeout) const;
  StoreConnection take_connection(const std::string& what, milliseconds timeout);
  std::optional<StoreConnection> take_idle(const std::string& what);
  ConnectResult try_to_connect(Deadline& deadline) const;
  StoreConnection reconnect(const std::string& what, milliseconds timeout) const;
  void verify_server(StoreConnection& connection, const std::string& what, milliseconds timeout);
  [[noreturn]] void raise_lost(const std::string& what, const std::string& detail = "") const;
  [[noreturn]] void raise_late(const std::string& what, milliseconds timeout) const;
  [[noreturn]] void raise_silent(const std::string& what, milliseconds timeout) const;

  std::unique_ptr<StoreServer> held_;  // the server, if this process holds the store
  std::string address_, holder_;
  Connect connect_;
  std::mutex mutex_;
  std::vector<StoreConnection> idle_;
  std::string server_;  // the server's id; empty until the server has sent it
};

}  // namespace lockstep::parallel
