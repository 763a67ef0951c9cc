// The client's side of a store that a server holds (StoreServer): requests, each over a connection of its own, so that
// requests of other threads do not wait for it. How to connect is the business of unix_store.cpp and tcp_store.cpp.
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

// How an attempt to connect to a store ended. Among several addresses the largest says most.
enum class ConnectOutcome {
  kConnected,
  kNobody,        // nothing listens there
  kBusy,          // its queue of connections is full
  kClosed,        // it closed before it answered
  kExhausted,     // its process has run out of file descriptors
  kSilent,        // it accepted and does not answer
  kOtherUser,     // it belongs to another user
  kOtherVersion,  // another version of Lockstep
  kOtherJob,      // another job (over TCP: or another token, or no store at all)
};

// A connection after its handshake.
struct StoreConnection {
  std::unique_ptr<Stream> stream = nullptr;
  bool is_verified = false;  // the server has sent its id here, and it is the one that all connections have
};

struct ConnectResult {
  ConnectOutcome outcome = ConnectOutcome::kNobody;
  Peer server = {};  // of a Unix socket
  // The server's version, what its process has run out of, the error of the system, or what the server did wrong.
  std::string detail = {};
  StoreConnection connection = {};  // with kConnected
};

enum class Outcome { kAnswered, kClosed, kTimeout };
// Sends all of `bytes`. A closed connection counts as sent: the server may have said why it closed, which can be read.
Outcome send_all(Stream& stream, const std::string& bytes, Deadline& deadline);
// Reads at most `most` bytes more into `into`.
Outcome read_some(Stream& stream, std::string& into, std::size_t most, Deadline& deadline);
// Waits until the socket is ready for `events` or closed; false at the deadline.
bool wait_for(const Descriptor& socket, short events, Deadline& deadline);

// Says hello over a stream that has just been made, and reads the server's answer.
ConnectResult say_hello(std::unique_ptr<Stream> stream, const JobId& job, Deadline& deadline);

class StoreClient final : public Store {
 public:
  using Connect = std::function<ConnectResult(Deadline)>;
  // For messages: the address, "127.0.0.1:29500", and the process that holds the store, "rank 0 (process 12)". `first` is the
  // first connection; calls that run at the same time make others by `connect`, and so do those after the idle ones have
  // ended, as they do when hosts are cut off from each other for long.
  StoreClient(std::string address, std::string holder, StoreConnection first, Connect connect);
  // The client of the process that holds the store, which ends with it.
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

  std::unique_ptr<StoreServer> held_;  // the server, where this process holds the store
  std::string address_, holder_;
  Connect connect_;
  std::mutex mutex_;
  std::vector<StoreConnection> idle_;
  std::string server_;  // its id, once it has sent it
};

}  // namespace lockstep::parallel
