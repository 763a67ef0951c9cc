// The server of a store: a thread that holds the table and answers clients over the sockets of a listener. Who may ask,
// and how frames are guarded, is the business of a gate, one for Unix sockets and one for TCP.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "lockstep/parallel/rendezvous/frame_guard_internal.h"
#include "lockstep/parallel/rendezvous/socket_internal.h"

namespace lockstep::parallel {

// What a connection says before its frames count.
class Handshake {
 public:
  virtual ~Handshake() = default;

  enum class State { kMore, kKnown, kRefused };
  struct Step {
    State state = State::kMore;
    std::string reply = {};                // to send; after a refusal the connection then closes
    std::optional<FrameGuard> guard = {};  // of all further frames, with kKnown; without one they go as they are
  };

  // How many bytes may be read now, in addition to the `have` that stand there (kMaxHelloBytes in all).
  virtual std::size_t wanted(std::size_t have) const = 0;
  // Looks at what stands in `in` and removes what it has done with. Throws IoError at the first wrong byte, or Forged.
  virtual Step take(std::string& in) = 0;
};

class StoreGate {
 public:
  virtual ~StoreGate() = default;
  // For a connection that has just come; null turns it away without a word.
  virtual std::unique_ptr<Handshake> greet(const Descriptor& socket) = 0;
  // Tells a connection that is to be closed what this process has run out of.
  virtual void refuse(const Descriptor& /*socket*/, const std::string& /*why*/) {}
  // Hears of connections that are closed because they did not do as they should. `why` has no secrets.
  virtual void turned_away(const Descriptor& /*socket*/, const std::string& /*why*/) {}
};

// Holds the table until it is destroyed; the clients' calls then fail. Never throws after construction: a client that
// does not keep to the rules loses its connection, the others go on.
class StoreServer {
 public:
  // Throws CommError where thread or descriptors cannot be had.
  StoreServer(Descriptor listener, std::unique_ptr<StoreGate> gate);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

}  // namespace lockstep::parallel
