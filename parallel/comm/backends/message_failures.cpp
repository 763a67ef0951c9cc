// How a MessageGroup detects lost and late ranks, reports failures to the other ranks, and ends.
#include <algorithm>

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/comm/backends/message_group_internal.h"

namespace lockstep::parallel {
namespace {

constexpr std::chrono::seconds kUntilReported{1};     // a failing rank reports the reason before it disconnects
constexpr std::chrono::milliseconds kUntilSent{200};  // for sending a failure report, or data before it

void set_text(FailedSteps& steps, std::string_view text) {
  steps.text = {};
  first_line(text, steps.text.size()).copy(steps.text.data(), steps.text.size());
}

bool has_left(Poison reason) { return reason == Poison::kLeft || reason == Poison::kLeftByError; }

}  // namespace

// True if an operation still needs a message from or to `peer`. Messages that have been received but not processed do
// not count.
bool MessageGroup::is_needed(const MessageWork& work, int peer) {
  const auto is_missed = [&](const auto& request) {
    return request && request->peer() == peer && (transport_->blocks() || !transport_->finish(*request, nullptr));
  };
  const auto is_awaited = [&](const PostedHeaders& posted) {
    const PostedHeaders::Slot& slot = posted.slots.front();
    return !slot.request || is_missed(slot.request);
  };
  if (!work.begun && work.call.is_message())
    return work.call.kind == Kind::kRecv && peer == work.call.root &&
           is_awaited(transfer_headers_[static_cast<std::size_t>(peer)]);
  if (!work.begun)
    return std::any_of(rounds_.begin() + static_cast<std::ptrdiff_t>(work.round), rounds_.end(),
                       [&](const Round& round) { return round.from == peer; }) &&
           is_awaited(headers_[static_cast<std::size_t>(peer)]);
  return std::ranges::any_of(work.last, is_missed) ||
         std::any_of(work.steps.begin() + static_cast<std::ptrdiff_t>(work.next_step), work.steps.end(),
                     [&](const auto& step) { return std::ranges::any_of(step.needs, is_missed); });
}

// True if the peer's part of an operation has not reached this rank. Other ranks may have to pass it on.
bool MessageGroup::is_missing(const MessageWork& work, int peer) {
  if (work.begun || work.call.is_message()) return is_needed(work, peer);
  return !rounds_[work.round].held.contains(peer);
}

// True if the peer has left because of another rank.
bool MessageGroup::is_second_hand(const Failure& report, int peer) const {
  return has_left(report.reason) && report.culprit != global_rank(peer);
}

// Liveness check on a transport that blocks, after a slice of waiting for one rank. Throws PeerLost if another rank
// that is needed later is lost or has reported a failure, or if the deadline has passed.
void MessageGroup::check_liveness_blocking(const MessageWork& work, int waited_for, Deadline& deadline) {
  queue_of(work.call).waits_for.store(global_rank(waited_for), std::memory_order_relaxed);
  liveness_->answer_requests();
  read_failed_steps();
  const int failed = find_failed_step(work, false);
  if (failed != kNobody) throw PeerLost{failed, "", false};
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || peer == waited_for || !transport_->is_closed(peer)) continue;
    Deadline report_deadline(kUntilReported);
    const std::optional<Failure> report = report_of(work, peer, &report_deadline);
    if (report ? !has_left(report->reason) || is_second_hand(*report, peer) : is_missing(work, peer))
      throw PeerLost{peer, "its connection is closed", false};
  }
  if (deadline.passed()) throw PeerLost{waited_for, "", true};
}

// Returns the report of a peer that has failed or left. If the peer's connection is closed, waits for the report; throws
// PeerLost if none arrives and the operation needs the peer.
std::optional<MessageGroup::Failure> MessageGroup::report_or_loss_of(const MessageWork& work, int peer) {
  std::optional<Failure> report = report_of(work, peer, nullptr);
  if (report || !transport_->is_closed(peer)) return report;
  Deadline deadline(kUntilReported);
  report = report_of(work, peer, &deadline);
  if (!report && (is_missing(work, peer) || (work.begun && is_needed(work, kAnyRank))))
    throw PeerLost{peer, "its connection is closed", false};
  return report;
}

// As is_needed, once the report of the peer has been read, so that messages sent before the report have been received.
// The data of a peer that has left is waited for, because it arrives on another connection than the report.
bool MessageGroup::is_still_needed(const MessageWork& work, int peer, const std::optional<Failure>& report) {
  bool is_missed = is_needed(work, peer);
  const bool is_leaving = report && has_left(report->reason) && transport_->has_connections();
  for (Deadline deadline(kUntilSent); is_leaving && is_missed && !deadline.passed();) is_missed = is_needed(work, peer);
  return is_missed;
}

// Fails the group if a peer has failed, or has left before it did its part of the operation. Returns the peer that this
// rank waits for, or kNobody. Throws PeerLost if a peer is lost.
int MessageGroup::check_peers(const MessageWork& work) {
  int needed = kNobody;
  const int next = work.begun || work.call.is_message() ? kNobody : rounds_[work.round].from;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const std::optional<Failure> report = report_or_loss_of(work, peer);
    const bool is_missed = is_still_needed(work, peer, report);
    if (is_missed && (needed == kNobody || peer == next)) needed = peer;
    if (!report || (has_left(report->reason) && !is_second_hand(*report, peer) && !is_missed))
      continue;  // the rank has done its part
    const int failed = has_left(report->reason) ? find_failed_step(work, true) : kNobody;
    fail(failed != kNobody                        ? explain_failed_step(work, failed)
         : report->reason == Poison::kLeftByError ? explain_departure(work, *report)
                                                  : *report);
    break;
  }
  return needed;
}

// Liveness check on a transport that does not block, for the front of a queue that no other thread works on.
void MessageGroup::check_liveness(Queue& queue, std::unique_lock<std::mutex>& lock, Deadline& deadline) {
  const std::shared_ptr<MessageWork> front = queue.works.front();
  queue.is_driven = true;
  lock.unlock();
  try {
    const int needed = check_peers(*front);
    queue.waits_for.store(needed == kNobody ? kNobody : global_rank(needed), std::memory_order_relaxed);
    liveness_->answer_requests();
    read_failed_steps();
    const int failed = find_failed_step(*front, true);
    if (failed != kNobody) fail(explain_failed_step(*front, failed));
    if (deadline.passed()) fail(explain_delay(*front, needed == kNobody ? front->call.root : needed));
  } catch (const PeerLost& lost) {
    fail(explain(*front, lost));
  }
  queue.waits_for.store(kNobody, std::memory_order_relaxed);
  lock.lock();
  queue.is_driven = false;
  if (failure_) end_queues();
}

// Makes the group unusable; its operations end when their queues are processed next.
void MessageGroup::fail(const Failure& failure) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = GroupFailure(failure.message, failure.reason == Poison::kLate);
  }
  report_to_others(failure.reason, failure.culprit, failure.what);
  transport_->hang_up(true);
}

void MessageGroup::fail_group(const std::string& why) {
  fail({Poison::kFailed, global_rank(rank_), poison_text(Poison::kFailed, text_of(rank_), why), why});
  const std::lock_guard lock(mutex_);
  end_queues();
}

bool MessageGroup::has_failed() {
  const std::lock_guard lock(mutex_);
  return static_cast<bool>(failure_);
}

MessageGroup::Failure MessageGroup::failure_of(const MessageWork& work, Poison reason, int global_culprit,
                                               const std::string& what) const {
  const std::string text = poison_text(reason, text_of_global(global_culprit), what);
  return {reason, global_culprit, fmt::format("{}: {}", work.call.describe(), text), what};
}

MessageGroup::Failure MessageGroup::explain(const MessageWork& work, const PeerLost& lost) {
  if (const int failed = find_failed_step(work, false); failed != kNobody) return explain_failed_step(work, failed);
  if (lost.late) return explain_delay(work, std::max(lost.peer, 0));
  Deadline deadline(kUntilReported);
  const std::optional<Failure> report = lost.peer >= 0 ? report_of(work, lost.peer, &deadline) : std::nullopt;
  if (!report) return failure_of(work, Poison::kLost, lost.peer >= 0 ? global_rank(lost.peer) : kNobody, lost.why);
  if (const int failed = find_failed_step(work, false); failed != kNobody) return explain_failed_step(work, failed);
  return report->reason == Poison::kLeftByError ? explain_departure(work, *report) : *report;
}

// Returns the failure for a rank that left because of an error. If the error was the loss of a third rank in another
// group, the third rank's connection closes in this group, too, and the third rank is to blame.
MessageGroup::Failure MessageGroup::explain_departure(const MessageWork& work, const Failure& departure) {
  for (Deadline deadline(kUntilSilent); transport_->has_connections() && !deadline.passed();) {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_ || global_rank(peer) == departure.culprit || !transport_->is_closed(peer)) continue;
      const std::optional<Failure> report = report_of(work, peer, &deadline);
      if (!report) return failure_of(work, Poison::kLost, global_rank(peer));
      if (!has_left(report->reason)) return *report;
    }
    std::this_thread::sleep_for(kBetweenAnswers);
  }
  return departure;
}

// Returns the failure for a timeout, or the one that another rank has reported meanwhile.
MessageGroup::Failure MessageGroup::explain_delay(const MessageWork& work, int waited_for) {
  const bool transfer = work.call.is_message();
  std::vector<int> late;
  const bool has_begun = transfer || work.begun;
  for (int peer = 0; peer < size_; ++peer) {
    if (!has_begun && is_missing(work, peer)) late.push_back(peer);
  }
  if (late.empty()) late.push_back(waited_for);
  const int first = std::ranges::find(late, waited_for) != late.end() ? waited_for : late.front();
  const std::vector<int> all_late = global_ranks(late);
  std::vector<int> silent = find_silent(all_late, global_rank(first), global_rank(rank_),
                                        [&](const std::vector<int>& ranks) { return liveness_->ask(ranks); });
  if (silent.empty()) silent = {global_rank(first)};  // not all late ones: parts of some may wait at other ranks
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const std::optional<Failure> report = report_of(work, peer, nullptr);
    if (report && !has_left(report->reason)) return *report;
  }
  const char* const delay = !has_begun ? "has not arrived" : transfer ? "did not answer" : "does not finish its part";
  const std::string text = text_of_silent(
      silent, all_late, [&](int global) { return text_of_global(global); }, [&](int) { return delay; });
  return {Poison::kLate, silent.front(), not_complete(work.call, timeout_, text)};
}

// --- failed steps ---------------------------------------------------------------------------------------------------

// Tells the other ranks that an exception has ended this rank's step. The group stays usable: if the steps of all ranks
// end after the same collectives, no rank waits for a collective that another one never starts.
std::uint32_t MessageGroup::step_failed(std::uint64_t next, const std::string& why) {
  std::uint64_t unfinished = next;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return failed_steps_[static_cast<std::size_t>(rank_)].count;  // only this thread changes it
    if (!queues_.front().works.empty()) unfinished = queues_.front().works.front()->call.number;
  }
  const std::lock_guard lock(report_mutex_);
  FailedSteps& own = failed_steps_[static_cast<std::size_t>(rank_)];
  own = {own.count + 1, next, unfinished};
  set_text(own, why);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    FailedSteps& told = steps_reported_[static_cast<std::size_t>(peer)];
    told = own;
    told.sent = messages_sent_[static_cast<std::size_t>(peer)];
    told.received = messages_received_[static_cast<std::size_t>(peer)];
    step_outbox_.send(peer, {.rank = rank_, .steps = told});
  }
  return own.count;
}

// Reads the reports of failed steps that have arrived. Called by any thread of this rank while it waits.
void MessageGroup::read_failed_steps() {
  const std::lock_guard lock(report_mutex_);
  try {
    while (transport_->finish(*step_request_, nullptr)) {
      const Note got = step_note_;
      step_request_ = transport_->receive(kAnyRank, Channel::kFailedSteps, &step_note_, sizeof(Note));
      if (got.rank >= 0 && got.rank < size_ && got.rank != rank_)
        failed_steps_[static_cast<std::size_t>(got.rank)] = got.steps;
    }
  } catch (const PeerLost&) {
    // The transport has ended.
  }
}

// Returns a rank that will not do its part of an operation because its step has failed, or kNobody.
int MessageGroup::find_failed_step(const MessageWork& work, bool is_waited_for) {
  const std::lock_guard lock(report_mutex_);
  const std::uint32_t own = failed_steps_[static_cast<std::size_t>(rank_)].count;
  if (work.call.is_message()) {
    const FailedSteps& steps = failed_steps_[static_cast<std::size_t>(work.call.root)];
    const std::uint64_t started = work.call.kind == Kind::kRecv ? steps.sent : steps.received;
    return steps.count > own && work.call.number >= started ? work.call.root : kNobody;
  }
  for (int peer = 0; peer < size_; ++peer) {
    const FailedSteps& steps = failed_steps_[static_cast<std::size_t>(peer)];
    const bool never_starts = steps.count > work.call.failed_steps && work.call.number >= steps.next;
    // A peer that has started the operation may still have to wait for others to finish its own part. If its step
    // failed before that, and this rank's step has not failed, the peer never waits.
    const bool never_waits = is_waited_for && steps.count > own && work.call.number >= steps.unfinished;
    if (never_starts || never_waits) return peer;
  }
  return kNobody;
}

MessageGroup::Failure MessageGroup::explain_failed_step(const MessageWork& work, int rank) {
  const FailedSteps& steps = failed_steps_[static_cast<std::size_t>(rank)];
  std::string what;
  for (Deadline deadline(kUntilReported); !deadline.passed();) {  // the rank's header may arrive before its report
    liveness_->answer_requests();
    read_failed_steps();
    {
      const std::lock_guard lock(report_mutex_);
      if (steps.count > work.call.failed_steps || rank == rank_) what = printable(steps.text);
    }
    if (!what.empty()) break;
    std::this_thread::sleep_for(kBetweenAnswers);  // a receive from any rank can only be polled
  }
  return failure_of(work, Poison::kFailed, global_rank(rank), what);
}

// --- failure reports ------------------------------------------------------------------------------------------------

// Returns the failure that a rank has reported by the deadline (null: by now), or nothing. A rank that leaves after a
// failed step repeats the report of that step, because the two messages may arrive in either order.
std::optional<MessageGroup::Failure> MessageGroup::report_of(const MessageWork& work, int peer, Deadline* deadline) {
  const auto r = static_cast<std::size_t>(peer);
  const std::lock_guard lock(report_mutex_);
  try {
    while (!transport_->finish(*report_requests_[r], deadline)) {
      if (!deadline || deadline->passed()) return std::nullopt;
    }
  } catch (const PeerLost&) {
    return std::nullopt;
  }
  const Note& report = reports_[r];
  const auto reason = static_cast<Poison>(report.kind);
  if (has_left(reason) && report.steps.count > failed_steps_[r].count) failed_steps_[r] = report.steps;
  return failure_of(work, reason, std::clamp(report.rank, 0, liveness_->size() - 1), printable(report.steps.text));
}

void MessageGroup::report_to_others(Poison reason, int global_culprit, const std::string& what) {
  for (int k = 1; k < size_; ++k) {
    const int peer = (rank_ + k) % size_;
    Note& note = own_notes_[static_cast<std::size_t>(peer)];
    note = {static_cast<std::int32_t>(reason), global_culprit};
    if (has_left(reason)) {
      const std::lock_guard lock(report_mutex_);
      note.steps = steps_reported_[static_cast<std::size_t>(peer)];
    } else {
      set_text(note.steps, what);
    }
    try {
      own_reports_.push_back(transport_->send(peer, Channel::kFailures, &note, sizeof(note)));
    } catch (const PeerLost&) {
      // The rank is the culprit, or detects the failure itself.
    }
  }
  if (reason == Poison::kLeft) return;
  // This process may end immediately, which would discard unsent reports.
  Deadline deadline(kUntilSent);
  for (const auto& request : own_reports_) {
    try {
      while (!transport_->finish(*request, &deadline) && !transport_->is_closed(request->peer()) &&
             !deadline.passed()) {
      }
    } catch (const PeerLost&) {
      // The rank is the culprit, or detects the failure itself.
    }
  }
}

// Ends all operations after a failure, except those that a thread still works on. mutex_ must be locked.
void MessageGroup::end_queues() {
  for (Queue& queue : queues_) {
    if (queue.is_driven) continue;
    for (const auto& work : queue.works) {
      work->failure = stopping_ ? failure_.with_context(work->call) : failure_;
      work->over.store(true, std::memory_order_release);
    }
    queue.works.clear();
  }
  changed_.notify_all();
}

}  // namespace lockstep::parallel
