// How a MessageGroup notices that a rank is lost or late, says so to the others, and ends.
#include <algorithm>

#include "lockstep/parallel/backends/message_group.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::inline LOCKSTEP_ABI::parallel {
namespace {

constexpr std::chrono::seconds kNewsPatience{1};  // a rank that fails tells why before it hangs up

}  // namespace

// Whether an operation cannot be complete without more from or to `peer`; what is here already, but has not been looked
// at, is not missed.
bool MessageGroup::is_needed(const MessageWork& work, int peer) {
  const auto is_missed = [&](const auto& parcel) {
    return parcel && parcel->peer() == peer && (transport_->blocks() || !transport_->finish(*parcel, nullptr));
  };
  if (!work.begun) {
    if (peer < work.heard || work.call.kind == Kind::kSend || (work.call.kind == Kind::kRecv && peer != work.call.root))
      return false;
    const Mailbox::Slot& slot = mailbox_of(work, peer).slots.front();
    return !slot.parcel || is_missed(slot.parcel);
  }
  return std::ranges::any_of(work.last, is_missed) ||
         std::any_of(work.steps.begin() + static_cast<std::ptrdiff_t>(work.next_step), work.steps.end(),
                     [&](const auto& step) { return std::ranges::any_of(step.needs, is_missed); });
}

// After a slice of waiting for one rank: have others failed meanwhile, whom this one waits for later, or who tell so?
void MessageGroup::check_hope(const MessageWork& work, int waited_for, Deadline& deadline) {
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || peer == waited_for || !transport_->is_closed(peer)) continue;
    Deadline patience(kNewsPatience);
    Failure failure;
    const bool told = hear_of_failure(work, peer, &patience, &failure);
    if (told ? failure.reason != Poison::kLeft : is_needed(work, peer))
      throw PeerLost{peer, "its connection is closed", false};
  }
  if (deadline.passed()) throw PeerLost{waited_for, "", true};
}

// Where the transport does not block: is there still hope for the front of a lane that nobody else works on?
void MessageGroup::look_around(Lane& lane, std::unique_lock<std::mutex>& lock, Deadline& deadline) {
  const std::shared_ptr<MessageWork> front = lane.queue.front();
  lane.is_driven = true;
  lock.unlock();
  try {
    Failure failure;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_ || !hear_of_failure(*front, peer, nullptr, &failure)) continue;
      if (failure.reason == Poison::kLeft && !is_needed(*front, peer)) continue;  // it has done its part
      fail(failure);
      break;
    }
  } catch (const PeerLost& lost) {
    fail(explain(*front, lost));
  }
  if (deadline.passed()) fail_late(*front);
  lock.lock();
  lane.is_driven = false;
  if (!failed_.empty()) end_lanes();
}

// Makes the group unusable; the operations end when their lanes are looked at next.
void MessageGroup::fail(const Failure& failure) {
  {
    const std::lock_guard lock(mutex_);
    if (!failed_.empty()) return;
    failed_ = failure.message;
    failed_late_ = failure.reason == Poison::kLate;
  }
  tell_others(failure.reason, failure.culprit);
  transport_->hang_up(true);
}

// Where the transport cannot say who is late.
void MessageGroup::fail_late(const MessageWork& work) { fail(explain(work, {work.call.root, "", true})); }

MessageGroup::Failure MessageGroup::explain(const MessageWork& work, const PeerLost& lost) {
  Failure failure{Poison::kLost, lost.peer, ""};
  if (!lost.late) {
    Deadline patience(kNewsPatience);
    if (lost.peer >= 0 && hear_of_failure(work, lost.peer, &patience, &failure)) return failure;
    failure.message = fmt::format("{}: {}", work.call.describe(), poison_text(Poison::kLost, lost.peer, lost.why));
    return failure;
  }
  std::string late;
  const auto add = [&](int peer, const char* what) {
    if (late.empty()) failure.culprit = peer;
    late += fmt::format("{}rank {} {}", late.empty() ? "" : ", ", peer, what);
  };
  const bool transfer = work.call.is_message();
  for (int peer = work.heard; peer < size_ && !transfer && !work.begun; ++peer) {
    if (peer == rank_) continue;
    try {
      const Mailbox::Slot& slot = mailbox_of(work, peer).slots.front();
      if (slot.parcel && transport_->finish(*slot.parcel, nullptr)) continue;
    } catch (const PeerLost&) {
      // What had not come before the time was up never will.
    }
    add(peer, "has not arrived");
  }
  if (late.empty()) add(std::max(lost.peer, 0), transfer ? "did not answer" : "does not finish its part");
  failure.reason = Poison::kLate;
  failure.message = fmt::format("{}: not complete after {} ms: {}", work.call.describe(), timeout_.count(), late);
  return failure;
}

bool MessageGroup::hear_of_failure(const MessageWork& work, int peer, Deadline* deadline, Failure* failure) {
  const auto r = static_cast<std::size_t>(peer);
  const std::lock_guard lock(news_mutex_);
  try {
    while (!transport_->finish(*news_parcels_[r], deadline)) {
      if (!deadline || deadline->passed()) return false;
    }
  } catch (const PeerLost&) {
    return false;
  }
  failure->reason = static_cast<Poison>(news_[r].kind);
  failure->culprit = std::clamp(news_[r].root, 0, size_ - 1);
  failure->message = fmt::format("{}: {}", work.call.describe(), poison_text(failure->reason, failure->culprit, ""));
  return true;
}

void MessageGroup::tell_others(Poison reason, int culprit) {
  Head& own = news_.back();
  own.kind = static_cast<std::uint8_t>(reason);
  own.root = culprit;
  for (int k = 1; k < size_; ++k) {
    try {
      own_news_.push_back(transport_->send((rank_ + k) % size_, Channel::kFailures, &own, sizeof(own)));
    } catch (const PeerLost&) {
      // It is the one, or knows by itself.
    }
  }
}

// After a failure, with the lock held: all operations are over but those that somebody still works on.
void MessageGroup::end_lanes() {
  const auto end_lane = [&](Lane& lane) {
    if (lane.is_driven) return;
    for (const auto& work : lane.queue) {
      work->error = stopping_ ? work->call.describe() + ": " + failed_ : failed_;
      work->late = failed_late_;
      work->over.store(true, std::memory_order_release);
    }
    lane.queue.clear();
  };
  end_lane(collectives_);
  for (Lane& lane : transfers_) end_lane(lane);
  changed_.notify_all();
}

}  // namespace lockstep::inline LOCKSTEP_ABI::parallel
