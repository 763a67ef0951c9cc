// The interface of the libraries that move the bytes of a MessageGroup: gloo's pairs, MPI's communicators, UCX's workers.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "lockstep/parallel/comm/backend_internal.h"
#include "lockstep/parallel/rendezvous/deadline_internal.h"

namespace lockstep::parallel {

// Messages from one rank to another on one channel arrive in the order in which they were sent.
enum class Channel : int {
  kHeaders,
  kParts,
  kResults,
  kTransferHeaders,
  kTransfers,
  kFailures,
  kFailedSteps,
  kLivenessRequests,  // used only in the original group, see MessageLiveness
};
inline constexpr int kChannels = 8;
inline constexpr int kAnyRank = -1;  // any sender, on the last two channels, whose messages contain the sender's rank

// A posted send or receive (a request). Destroying an incomplete one cancels it for good.
class Request {
 public:
  explicit Request(int peer) : peer_(peer) {}
  virtual ~Request() = default;
  int peer() const { return peer_; }  // -1: all ranks

 private:
  int peer_;
};

// Thrown by transports: the peer's end is closed, or it did not answer by the deadline.
struct PeerLost {
  int peer;
  std::string why;
  bool late;
};

class Transport {
 public:
  virtual ~Transport() = default;
  // Post a request; the memory must stay valid until the request is complete. A receive accepts messages of up to
  // `bytes`; no larger ones are sent, as the engine compares the headers of both sides first.
  virtual std::unique_ptr<Request> send(int to, Channel channel, const void* data, std::size_t bytes) = 0;
  virtual std::unique_ptr<Request> receive(int from, Channel channel, void* data, std::size_t bytes) = 0;
  // True if the request is complete. With a deadline, a transport that can only wait waits for one slice of it.
  virtual bool finish(Request& request, Deadline* deadline) = 0;
  // True if the connection is known to have ended, by a failure or not.
  virtual bool is_closed(int peer) = 0;
  // True if a connection ends with its peer, and a report on kFailures may arrive before data that was sent earlier.
  virtual bool has_connections() const { return blocks(); }

  // True if `finish` blocks, so that the group needs a thread to make progress while the caller computes.
  virtual bool blocks() const = 0;
  // Starts the library's own algorithm for a call without sums; null if it has none or the group's is as fast.
  virtual std::unique_ptr<Request> start_native(const Call& call) = 0;
  // Ends the transport, after a failure or not: waits for this rank end, on all ranks. Nothing is posted afterwards.
  virtual void hang_up(bool failed) = 0;
};

}  // namespace lockstep::parallel
