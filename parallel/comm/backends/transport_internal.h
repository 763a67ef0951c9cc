// What a MessageGroup asks of the library that moves its bytes: gloo's pairs, MPI's communicators.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "lockstep/parallel/comm/backend_internal.h"
#include "lockstep/parallel/rendezvous/deadline_internal.h"

namespace lockstep::parallel {

// Messages from one rank to another on one channel arrive in the order in which they were sent.
enum class Channel : int { kHeads, kParts, kResults, kTransferHeads, kTransfers, kFailures, kQuestions };
inline constexpr int kChannels = 7;
inline constexpr int kAnyRank = -1;  // from which a message on kQuestions may come; they say so themselves

// A send or a receive that was posted. Destroying one that is under way gives it up, for good.
class Parcel {
 public:
  explicit Parcel(int peer) : peer_(peer) {}
  virtual ~Parcel() = default;
  int peer() const { return peer_; }  // -1: of all ranks together

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
  // Post; the memory must stay until the parcel is done. A receive takes messages of up to `bytes`; larger ones never
  // come, as the engine compares what both sides are about to do before.
  virtual std::unique_ptr<Parcel> send(int to, Channel channel, const void* data, std::size_t bytes) = 0;
  virtual std::unique_ptr<Parcel> receive(int from, Channel channel, void* data, std::size_t bytes) = 0;
  // Whether it is done. Waits for that for a slice, where there is a deadline and the transport can only wait.
  virtual bool finish(Parcel& parcel, Deadline* deadline) = 0;
  // Whether the connection has ended, by a failure or not, as far as this can be told.
  virtual bool is_closed(int peer) = 0;

  // Whether `finish` blocks, so that somebody must wait while the caller does other things: the group has a thread.
  virtual bool blocks() const = 0;
  // The library's own algorithm for a call without sums, started; null where it has none or the group's is as fast.
  virtual std::unique_ptr<Parcel> start_native(const Call& call) = 0;
  // The end, by a failure or not: whoever waits for this rank, here or there, is let go. Nothing is posted afterwards.
  virtual void hang_up(bool failed) = 0;
};

}  // namespace lockstep::parallel
