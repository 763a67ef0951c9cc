#include "lockstep/parallel/comm/backends/message_liveness_internal.h"

#include <thread>
#include <utility>

#include <fmt/format.h>

namespace lockstep::parallel {

MessageLiveness::MessageLiveness(int rank, int size, std::shared_ptr<Transport> transport)
    : rank_(rank), size_(size), transport_(std::move(transport)), outbox_(*transport_, Channel::kLivenessRequests),
      answers_(static_cast<std::size_t>(size), kNoAnswer) {
  try {
    incoming_receive_ = transport_->receive(kAnyRank, Channel::kLivenessRequests, &incoming_, sizeof(LivenessRequest));
  } catch (const PeerLost& lost) {
    throw CommError(fmt::format("init_process_group: the connections of rank {} have ended: {}", rank, lost.why));
  }
}

void MessageLiveness::add(const std::atomic<int>& waits_for) {
  const std::lock_guard lock(mutex_);
  waits_.push_back(&waits_for);
}

void MessageLiveness::remove(const std::atomic<int>& waits_for) {
  const std::lock_guard lock(mutex_);
  std::erase(waits_, &waits_for);
}

// Returns one of the ranks that this rank waits for: another one than the asker, if there is one.
int MessageLiveness::awaited_rank(int asker) const {
  int awaited = kNobody;
  for (const std::atomic<int>* const each : waits_) {
    const int other = each->load(std::memory_order_relaxed);
    if (other != kNobody && (awaited == kNobody || awaited == asker)) awaited = other;
  }
  return awaited;
}

void MessageLiveness::answer_requests() {
  const std::lock_guard lock(mutex_);
  try {
    while (transport_->finish(*incoming_receive_, nullptr)) {
      const LivenessRequest got = incoming_;
      incoming_receive_ =
          transport_->receive(kAnyRank, Channel::kLivenessRequests, &incoming_, sizeof(LivenessRequest));
      if (got.from < 0 || got.from >= size_ || got.from == rank_) continue;
      if (got.is_answer)
        answers_[static_cast<std::size_t>(got.from)] = std::clamp(got.waits_for, kNobody, size_ - 1);
      else
        outbox_.send(got.from, {.from = rank_, .is_answer = 1, .waits_for = awaited_rank(got.from)});
    }
  } catch (const PeerLost&) {
    // The transport has ended.
  }
}

std::vector<int> MessageLiveness::ask(const std::vector<int>& ranks) {
  {
    const std::lock_guard lock(mutex_);
    for (const int rank : ranks) {
      answers_[static_cast<std::size_t>(rank)] = kNoAnswer;
      outbox_.send(rank, {.from = rank_});
    }
  }
  std::vector<int> answers(ranks.size(), kNoAnswer);
  for (Deadline deadline(kUntilSilent); !deadline.passed();) {
    answer_requests();
    {
      const std::lock_guard lock(mutex_);
      for (std::size_t i = 0; i < ranks.size(); ++i) {  // another thread may ask the same rank, and reset its answer
        if (answers[i] == kNoAnswer) answers[i] = answers_[static_cast<std::size_t>(ranks[i])];
      }
    }
    if (std::ranges::find(answers, kNoAnswer) == answers.end()) break;
    std::this_thread::sleep_for(kBetweenAnswers);  // messages of several ranks can only be polled
  }
  return answers;
}

}  // namespace lockstep::parallel
