// Liveness requests between waiting ranks of the message-passing backends: after a timeout a rank asks the late ranks which
// rank they wait for. A rank that does not answer is suspended, or does not wait.
//
// All groups of a rank that were made from one init_process_group share one object, which uses the connections of the
// original group. So a rank that waits in one group answers the requests of ranks that wait in another one.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "lockstep/parallel/comm/backends/transport_internal.h"
#include "lockstep/parallel/comm/silent_ranks_internal.h"

namespace lockstep::parallel {

inline constexpr std::chrono::milliseconds kBetweenAnswers{1};

// Sends short messages without waiting for them, and keeps their memory until they are sent.
template <class T>
class Outbox {
 public:
  Outbox(Transport& transport, Channel channel) : transport_(transport), channel_(channel) {}
  void send(int to, const T& message) {
    while (!sent_.empty()) {
      try {
        if (!transport_.finish(*sent_.front().request, nullptr)) break;
      } catch (const PeerLost&) {
        // The rank has ended and needs no message.
      }
      sent_.pop_front();
    }
    Sent& last = sent_.emplace_back(Sent{message, nullptr});
    try {
      last.request = transport_.send(to, channel_, &last.message, sizeof(T));
    } catch (const PeerLost&) {
      sent_.pop_back();
    }
  }

 private:
  struct Sent {
    T message;
    std::unique_ptr<Request> request;
  };
  Transport& transport_;
  Channel channel_;
  std::deque<Sent> sent_;
};

// Ranks are global ranks. All functions may be called by any thread.
class MessageLiveness final : public Liveness {
 public:
  // For rank `rank` of the `size` ranks of the original group, whose transport then lives as long as any of the groups.
  MessageLiveness(int rank, int size, std::shared_ptr<Transport> transport);

  int size() const { return size_; }
  // Adds or removes a place in which a thread of this rank stores the rank that it waits for, or kNobody.
  void add(const std::atomic<int>& waits_for);
  void remove(const std::atomic<int>& waits_for);
  // Called by every thread of this rank while it waits.
  void answer_requests();
  // Returns which rank each of `ranks` waits for, or kNobody; kNoAnswer for a rank that does not answer in time.
  std::vector<int> ask(const std::vector<int>& ranks);

 private:
  struct LivenessRequest {
    int from = 0;
    int is_answer = 0;
    int waits_for = kNobody;  // in an answer
  };
  int awaited_rank(int asker) const;

  const int rank_, size_;
  std::shared_ptr<Transport> transport_;
  std::mutex mutex_;  // guards the members below
  std::vector<const std::atomic<int>*> waits_;
  LivenessRequest incoming_;  // the next request or answer from any rank
  std::unique_ptr<Request> incoming_receive_;
  Outbox<LivenessRequest> outbox_;
  std::vector<int> answers_;  // by rank: the rank it waits for, or kNoAnswer
};

}  // namespace lockstep::parallel
