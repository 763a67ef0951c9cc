// The client's side of a store that a server holds (StoreServer): the calls, each over a connection of its own, so that
// calls of other threads do not wait for it. How to connect is the business of UnixStore and TcpStore.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/rendezvous/deadline_internal.h"
#include "lockstep/parallel/rendezvous/frame_guard_internal.h"
#include "lockstep/parallel/rendezvous/socket_internal.h"
#include "lockstep/parallel/rendezvous/store.h"
#include "lockstep/parallel/rendezvous/store_frames_internal.h"

namespace lockstep::parallel {

// How a server, or what stands in its place, took a hello.
enum class Welcome {
  kYes,
  kNobody,        // nothing listens there
  kBusy,          // its queue of connections is full
  kGone,          // it closed before it answered
  kExhausted,     // its process has run out of file descriptors
  kSilent,        // it accepted and does not answer
  kOtherUser,     // it belongs to another user
  kOtherVersion,  // another version of Lockstep
  kOtherJob,      // another run (over TCP: or another token, or no store at all)
};

// A connection after its handshake.
struct StoreLink {
  Descriptor socket;
  std::optional<FrameGuard> guard;
  bool is_of_server = false;  // StoreClient: the server has said its name here, and it is the one that all links have
};

struct Greeting {
  Welcome welcome = Welcome::kNobody;
  Peer server;  // of a Unix socket
  // The server's version, what its process has run out of, the error of the system, or what the server did
  // wrong.
  std::string detail;
  StoreLink link;  // with kYes
};

enum class Outcome { kAnswered, kClosed, kTimeout };
// Sends all of `bytes`. A closed connection counts as sent: the server may have said why it closed, which can be read.
Outcome send_all(const Descriptor& socket, const std::string& bytes, Deadline& deadline);
// Reads at most `most` bytes more into `into`.
Outcome read_some(const Descriptor& socket, std::string& into, std::size_t most, Deadline& deadline);
// Waits until the socket is ready for `events` or closed; false at the deadline.
bool wait_for(const Descriptor& socket, short events, Deadline& deadline);

class StoreClient final : public Store {
 public:
  using Connect = std::function<Greeting(Deadline)>;
  // For messages: the address, "127.0.0.1:29500", and the process that holds the store, "rank 0 (process 12)". `link` is the
  // first connection; calls that run at the same time make others by `connect`, and so do those after the idle ones have
  // ended, as they do when hosts are cut off from each other for long.
  StoreClient(std::string address, std::string holder, StoreLink link, Connect connect);

  std::string request(const StoreRequest& request, std::chrono::milliseconds timeout) override;
  // The entry may outlive this client.
  std::unique_ptr<LastWill> leave_last_will(const std::vector<std::string>& keys, const std::string& value) override;

 private:
  using milliseconds = std::chrono::milliseconds;
  std::string ask(StoreLink& link, const StoreRequest& request, milliseconds timeout) const;
  StoreMessage exchange(StoreLink& link, const StoreRequest& request, milliseconds timeout) const;
  StoreLink take_link(const std::string& what, milliseconds timeout);
  std::optional<StoreLink> take_idle_link(const std::string& what);
  StoreLink reconnect(const std::string& what, milliseconds timeout);
  void verify_server(StoreLink& link, const std::string& what, milliseconds timeout);
  [[noreturn]] void raise_lost(const std::string& what, const std::string& detail = "") const;
  [[noreturn]] void raise_late(const std::string& what, milliseconds timeout) const;
  [[noreturn]] void raise_silent(const std::string& what, milliseconds timeout) const;

  std::string address_, holder_;
  Connect connect_;
  std::mutex mutex_;
  std::vector<StoreLink> idle_;
  std::string server_;  // its id, once it has sent it
};

}  // namespace lockstep::parallel
