// How the ranks of a SharedGroup wait, doing the group's work meanwhile, and how they detect failures.
#include <algorithm>

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/comm/backends/shared_group_internal.h"
#include "lockstep/parallel/comm/backends/shared_transfer_internal.h"
#include "lockstep/parallel/comm/silent_ranks_internal.h"
#include "lockstep/parallel/rendezvous/formation_watch_internal.h"

namespace lockstep::parallel {
namespace {

constexpr std::chrono::milliseconds kUntilEnded{100};  // from the end of a process's connections to the process's end

// Describes two calls that differ: "all_reduce of 2 f32 (sum), rank 1 all_reduce of 3 f32 (sum)".
std::string disagreement(const Fingerprint& own, const PurposeName& purpose, const std::string& peer,
                         const Fingerprint& theirs, const PurposeName& their_purpose) {
  const auto is_direct = [](const Fingerprint& print) { return print.in_at != kNotDirect; };
  const auto text_of = [&](const Fingerprint& print, const PurposeName& of) {
    return call_text(print.what, print.count, of) + (is_direct(print) ? " in communication memory" : "");
  };
  const auto places_of = [](const Fingerprint& print) {
    const auto text = [](std::uint64_t place) { return fmt::format("{}+{}", place >> 48, place << 16 >> 16); };
    return fmt::format("at {} and {}", text(print.in_at), text(print.out_at));
  };
  const std::string called = text_of(own, purpose), other = text_of(theirs, their_purpose);
  if (called != other) return fmt::format("{}, {} {}", called, peer, other);
  if (own.in_at == theirs.in_at && own.out_at == theirs.out_at)
    return fmt::format("{}, {} {}, of another shape, scale, name or id", called, peer, other);
  return fmt::format("{} {}, {} {}\nPass the same memory on all ranks (call of empty + byte, for in and out)",
                     call_text(own.what, own.count, purpose), places_of(own), peer, places_of(theirs));
}

bool is_timeout(std::uint64_t poison) { return static_cast<Poison>(poison >> 32) == Poison::kLate; }

}  // namespace

bool Operation::is_known_complete() { return !group || group->is_done_by_others(*this); }

// True if other ranks have done all tasks. On paths other than kDirect this rank must always do a part itself.
bool SharedGroup::is_done_by_others(const Operation& op) const {
  return op.path == Operation::Path::kDirect &&
         control_.done(op.sequence % kSlots).value.load(std::memory_order_acquire) >= op.done_at;
}

void SharedGroup::wait(Operation& op) {
  if (!op.group) return;
  failure_.check_usable(*op.call);
  wait_until([&] { return advance_to(op); },
             [&](Deadline& deadline) { check_liveness(*op.call, op.sequence, &deadline); });
}

bool SharedGroup::poll(Operation& op) {
  if (!advance_to(op) && ++op.polls % 64 == 0) check_liveness(*op.call, op.sequence, nullptr);
  return !op.group;
}

bool SharedGroup::advance_to(Operation& op) {
  if (!op.group) return true;
  advance_before(op.sequence);
  if (!transfers_.empty()) progress_transfers();
  return advance(op);
}

// Advances all operations in flight before `end`, oldest first: a rank that was woken for one operation may wait for
// another.
void SharedGroup::advance_before(std::uint64_t end) {
  const auto is_in_flight = [&](std::uint64_t sequence) {
    const std::shared_ptr<Operation>& op = in_flight_[sequence % kSlots];
    return op && op->sequence == sequence;
  };
  while (oldest_ < end && !is_in_flight(oldest_)) ++oldest_;
  for (std::uint64_t s = oldest_; s < end; ++s) {
    if (!is_in_flight(s)) continue;
    const std::shared_ptr<Operation> op = in_flight_[s % kSlots];  // the slot may drop its reference
    advance(*op);
  }
}

// Advances an operation without blocking. Returns whether it is complete.
bool SharedGroup::advance(Operation& op) {
  if (!op.group) return true;
  if (!op.agreed) {
    if (!all_arrived(op)) return false;
    compare_fingerprints(op);
    op.agreed = true;
  }
  if (op.path == Operation::Path::kInline) {
    // inline_done promises that all earlier copies have been read. All ranks have arrived at older operations, too.
    if (op.inline_number != inline_finished_) advance_before(op.sequence);
    ++inline_finished_;
    const void* const inputs[2] = {control_.inline_data(0, op.inline_number),
                                   control_.inline_data(1, op.inline_number)};
    run_inline(op, inputs, rank_);
    control_.rank(rank_).inline_done.store(inline_finished_, std::memory_order_seq_cst);
    wake_sleepers(control_.header());
  } else if (op.path != Operation::Path::kArrivalsOnly) {
    work(op);
    if (control_.done(op.sequence % kSlots).value.load(std::memory_order_acquire) < op.done_at) return false;
  }
  finish(op);
  return true;
}

bool SharedGroup::all_arrived(const Operation& op) const {
  for (int r = 0; r < size_; ++r) {
    if (control_.arrival(op.sequence % kSlots, r).sequence.load(std::memory_order_seq_cst) <= op.sequence) return false;
  }
  return true;
}

// Compares the fingerprints of all ranks. A rank whose slot has a later operation has completed this one, so it agreed.
void SharedGroup::compare_fingerprints(Operation& op) {
  const std::size_t slot = op.sequence % kSlots;
  const Arrival& own = control_.arrival(slot, rank_);
  const Fingerprint expected = own.fingerprint();
  for (int r = 0; r < size_; ++r) {
    const Arrival& peer = control_.arrival(slot, r);
    const Fingerprint found = peer.fingerprint();
    if (found == expected) continue;
    const PurposeName purpose = peer.purpose_at(op.sequence + 1);
    if (peer.sequence.load(std::memory_order_acquire) != op.sequence + 1) continue;  // the data of a later operation
    if (found.failed_steps != expected.failed_steps)
      fail_step(*op.call, found.failed_steps > expected.failed_steps ? r : rank_);
    fail(Poison::kDisagreed, r,
         fmt::format("{}: ranks disagree: {} called {}", op.call->describe(), text_of(rank_),
                     disagreement(expected, op.call->purpose, text_of(r), found, purpose)));
  }
}

// Runs tasks until none is left to claim: this rank's own share first.
void SharedGroup::work(Operation& op) {
  std::uint64_t finished = 0;
  RankState& own = control_.rank(rank_);
  for (int k = 0; k < size_; ++k) {
    const int owner = (rank_ + k) % size_;
    for (std::uint64_t task; claim(op, owner, &task); ++finished) {
      if (op.call->order == Reduction::kArrival && op.order.empty()) take_order(op);
      run_task(op, owner, task, size_);
    }
  }
  if (finished == 0) return own.busy.store(0, std::memory_order_relaxed);
  std::atomic<std::uint64_t>& done = control_.done(op.sequence % kSlots).value;
  const bool last = done.fetch_add(finished, std::memory_order_seq_cst) + finished == op.done_at;
  own.busy.store(0, std::memory_order_relaxed);
  if (last) wake_sleepers(control_.header());
}

// Sets the order of arrival from the ranks' tickets. Called only with a claimed task: until the task is done, no rank
// starts the slot's next operation and draws another ticket.
void SharedGroup::take_order(Operation& op) {
  std::vector<int> order(static_cast<std::size_t>(size_), -1);
  for (int r = 0; r < size_; ++r) {
    const Arrival& arrival = control_.arrival(op.sequence % kSlots, r);
    const std::uint64_t position = arrival.ticket.load(std::memory_order_relaxed) - op.tickets_from;
    if (position >= order.size() || order[position] >= 0)
      fail(Poison::kDisagreed, r,
           fmt::format("{}: ranks disagree: {} reports arrival number {} of {}", op.call->describe(), text_of(r),
                       position, size_));
    order[position] = r;
  }
  op.order = std::move(order);
}

bool SharedGroup::claim(const Operation& op, int owner, std::uint64_t* task) {
  const std::uint64_t from = op.claimed_from[static_cast<std::size_t>(owner)];
  const std::uint64_t to = from + op.tasks[static_cast<std::size_t>(owner)];
  std::atomic<std::uint64_t>& claimed = control_.claimed(op.sequence % kSlots, owner).value;
  std::uint64_t at = claimed.load(std::memory_order_relaxed);
  while (at >= from && at < to) {
    // Set before the claim, so that a rank that dies in between counts as busy.
    control_.rank(rank_).busy.store(op.sequence + 1, std::memory_order_relaxed);
    if (claimed.compare_exchange_weak(at, at + 1, std::memory_order_acq_rel, std::memory_order_relaxed)) {
      *task = at - from;
      return true;
    }
  }
  return false;
}

void SharedGroup::finish(Operation& op) {
  if (op.path == Operation::Path::kStaged) copy_out(op, rank_, size_);
  op.group = nullptr;
  std::shared_ptr<Operation>& slot = in_flight_[op.sequence % kSlots];
  if (slot.get() == &op) slot = nullptr;  // last, because the slot may be the only owner
}

// Liveness check, called once per slice while waiting. is_completed calls it without a deadline.
void SharedGroup::check_liveness(const Call& call, std::uint64_t sequence, Deadline* deadline) {
  const std::size_t slot = sequence % kSlots;
  const auto has_arrived = [&](int r) {
    return control_.arrival(slot, r).sequence.load(std::memory_order_acquire) > sequence;
  };
  const auto is_busy = [&](int r) { return control_.rank(r).busy.load(std::memory_order_acquire) == sequence + 1; };
  const std::string formation = formation_failure();
  bool have_all_arrived = true;
  for (int r = 0; r < size_; ++r) have_all_arrived = have_all_arrived && has_arrived(r);
  if (!formation.empty() && !have_all_arrived) raise_outcome(formation);
  std::vector<int> late;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_ || (has_arrived(r) && !is_busy(r))) continue;
    if (control_.rank(r).failed_steps.load(std::memory_order_acquire) > call.failed_steps && !has_arrived(r))
      fail_step(call, r);
    if (gone(r)) {  // checked again: the rank may have done its part before it left
      if (has_arrived(r) && !is_busy(r)) continue;
      fail_if_gone(call, r);
    }
    late.push_back(r);
  }
  fail_if_poisoned(call);
  if (!deadline) return;
  if (!late.empty()) publish_awaited_rank(late.front());
  if (!deadline->passed()) return;
  const std::vector<int> silent = find_silent(call, late);
  if (std::ranges::any_of(late, [&](int r) { return has_arrived(r) && !is_busy(r); })) return;  // arrived meanwhile
  const std::string text = text_of_silent(
      silent, global_ranks(late), [&](int global) { return text_of_global(global); },
      [&](int global) { return has_arrived(rank_of_global(global)) ? "does not finish its part" : "has not arrived"; });
  fail_late(silent.empty() ? global_rank(rank_) : silent.front(),
            not_complete(call, timeout_, text.empty() ? "all ranks have arrived, and none works on it" : text));
}

// The failure that the store holds while the group is being formed; empty if there is none. The store knows the rank
// that ended or failed first, which this rank cannot tell from the ranks that ended because of it.
std::string SharedGroup::formation_failure() {
  if (watch_ && watch_->is_finished()) watch_ = nullptr;
  try {
    return watch_ ? watch_->failure() : "";
  } catch (const CommError&) {  // the rank that holds the store has ended
    return "";
  }
}

// Publishes the rank that this rank waits for, and counts this liveness check.
void SharedGroup::publish_awaited_rank(int rank) {
  const int own = global_rank(rank_);
  liveness_->waits_for(own).store(static_cast<std::uint32_t>(global_rank(rank) + 1), std::memory_order_relaxed);
  liveness_->liveness_checks(own).fetch_add(1, std::memory_order_release);
}

// Called after a timeout. Returns the ranks to blame, as global ranks: late ones, or a rank that these wait for, which
// may be outside this group. A rank that waits, in any group, repeats its liveness check; a suspended or computing rank
// does not.
std::vector<int> SharedGroup::find_silent(const Call& call, const std::vector<int>& late) {
  std::vector<std::uint32_t> before;
  const auto checks_of = [&](int global) { return liveness_->liveness_checks(global).load(std::memory_order_acquire); };
  for (int global = 0; global < liveness_->size; ++global) before.push_back(checks_of(global));
  for (Deadline deadline(kUntilSilent); !deadline.passed();) {
    {
      Sleeper sleeper(control_.header());
      sleeper.sleep(deadline.slice());
    }
    fail_if_poisoned(call);  // another rank may have detected the failure
    if (!late.empty()) publish_awaited_rank(late.front());
  }
  const auto answer_of = [&](int global) {
    if (checks_of(global) == before[static_cast<std::size_t>(global)]) return kNoAnswer;
    const auto next = static_cast<int>(liveness_->waits_for(global).load(std::memory_order_acquire)) - 1;
    return next < liveness_->size ? std::max(next, kNobody) : kNobody;
  };
  const std::vector<int> all_late = global_ranks(late);
  const std::vector<int> silent = lockstep::parallel::find_silent(
      all_late, late.empty() ? kNobody : all_late.front(), global_rank(rank_), [&](const std::vector<int>& ranks) {
        std::vector<int> answers;
        for (const int global : ranks) answers.push_back(answer_of(global));
        return answers;
      });
  return silent.empty() ? all_late : silent;
}

Departure SharedGroup::departure(int rank) const {
  return static_cast<Departure>(control_.rank(rank).left.load(std::memory_order_acquire));
}

bool SharedGroup::gone(int rank) { return departure(rank) != Departure::kNone || !memory_->lost(rank).empty(); }

// Fails if a rank that is needed has left or ended. Another rank may be the cause: a failing rank reports the reason
// before it leaves or ends, and a rank may have left because another one ended without leaving.
void SharedGroup::fail_if_gone(const Call& call, int rank) {
  if (!gone(rank)) return;
  fail_if_poisoned(call);  // the rank's own report
  // An exception may have ended the rank's step after the caller checked for failed steps.
  if (control_.rank(rank).failed_steps.load(std::memory_order_acquire) > call.failed_steps) fail_step(call, rank);
  const Departure how = departure(rank);
  const auto fail_if_ended = [&](int r) {
    const std::string lost = departure(r) == Departure::kNone ? memory_->lost(r) : "";
    if (!lost.empty()) fail(Poison::kLost, r, fmt::format("{}: {} is gone: {}", call.describe(), text_of(r), lost));
  };
  // A rank that has started an operation leaves before its process ends, unless it is killed, so look for these ranks
  // first. A rank that has started none may have failed while it joined the group, because another one was killed.
  const auto has_joined = [&](int r) { return control_.arrival(0, r).sequence.load(std::memory_order_acquire) > 0; };
  for (const bool joined : {true, false}) {
    if (has_joined(rank) == joined) fail_if_ended(rank);
    for (int r = 0; r < size_; ++r) {
      if (r != rank_ && has_joined(r) == joined) fail_if_ended(r);
    }
  }
  if (how == Departure::kByError) {
    const auto now = Deadline::Clock::now();
    if (departed_ == Deadline::Clock::time_point()) departed_ = now;
    if (now - departed_ < kUntilEnded) return;
  }
  fail(Poison::kLeft, rank, fmt::format("{}: {} has left the group", call.describe(), text_of(rank)));
}

void SharedGroup::fail_if_poisoned(const Call& call) {
  if (const std::uint64_t poison = control_.header().poison.load(std::memory_order_acquire))
    give_up(GroupFailure(fmt::format("{}: {}", call.describe(), poison_text(poison)), is_timeout(poison)));
}

// Fails because an exception has ended a step of `rank`, but not the same step of all ranks.
void SharedGroup::fail_step(const Call& call, int rank) {
  report(Poison::kFailed, global_rank(rank));
  fail_if_poisoned(call);
}

void SharedGroup::fail_group(const std::string& why) {
  if (failure_) return;
  control_.rank(rank_).failure.set(why);
  report(Poison::kFailed, global_rank(rank_));
  abandon(GroupFailure(lockstep::parallel::poison_text(Poison::kFailed, text_of(rank_), why)));
}

std::uint32_t SharedGroup::step_failed(std::uint64_t /*next*/, const std::string& why) {
  RankState& own = control_.rank(rank_);
  if (failure_) return own.failed_steps.load(std::memory_order_relaxed);
  own.failure.set(why);
  const std::uint32_t failed = own.failed_steps.fetch_add(1, std::memory_order_seq_cst) + 1;
  wake_sleepers(control_.header());
  return failed;
}

// Fails because a connection to another rank is broken: a rank has ended, or is ending (its sockets close first).
void SharedGroup::fail_broken(const Call& call, const std::string& why) {
  for (Deadline deadline(kUntilSilent); !deadline.passed();) {
    fail_if_poisoned(call);
    for (int r = 0; r < size_; ++r) {
      if (r != rank_) fail_if_gone(call, r);
    }
    Sleeper sleeper(control_.header());
    sleeper.sleep(deadline.slice());
  }
  control_.rank(rank_).failure.set(why);
  fail(Poison::kFailed, rank_, fmt::format("{}: {}", call.describe(), why));
}

// Reports the failure to all ranks, makes the group unusable here, and throws.
void SharedGroup::fail(Poison reason, int culprit, const std::string& message) {
  report(reason, global_rank(culprit));
  give_up(GroupFailure(message));
}

// As `fail`, after a timeout. The culprit may be outside this group.
void SharedGroup::fail_late(int global_culprit, const std::string& message) {
  report(Poison::kLate, global_culprit);
  give_up(GroupFailure(message, /*late=*/true));
}

// Reports a failure of this rank alone, which the other ranks cannot detect, makes the group unusable here, and throws.
void SharedGroup::fail_alone(const Call& call, const LocalFailure& error) {
  control_.rank(rank_).failure.set(error.what());
  report(Poison::kFailed, global_rank(rank_));
  const std::string text = fmt::format("{}: {}", call.describe(), error.what());
  abandon(GroupFailure(text));
  throw DeviceError(text);
}

// Stores a report for all ranks, unless a rank has stored one before.
void SharedGroup::report(Poison reason, int global_culprit) {
  std::uint64_t none = 0;
  const std::uint64_t poison =
      static_cast<std::uint64_t>(reason) << 32 | static_cast<std::uint64_t>(global_culprit + 1);
  control_.header().poison.compare_exchange_strong(none, poison, std::memory_order_seq_cst);
  wake_sleepers(control_.header());
}

void SharedGroup::give_up(GroupFailure failure) {
  abandon(std::move(failure));
  failure_.raise();
}

void SharedGroup::abandon(GroupFailure failure) {
  failure_ = std::move(failure);
  for (auto& slot : in_flight_) {
    if (const std::shared_ptr<Operation> op = std::move(slot)) op->fail(failure_);
  }
  for (const auto& transfer : transfers_) transfer->fail(failure_);
  transfers_.clear();
}

std::string SharedGroup::poison_text(std::uint64_t poison) {
  const auto culprit = static_cast<int>((poison & 0xffffffff) - 1);
  if (culprit < 0 || culprit >= liveness_->size) return "the group has failed";
  const auto reason = static_cast<Poison>(poison >> 32);
  const int r = rank_of_global(culprit);
  const std::string what = r < 0                       ? ""
                           : reason == Poison::kLost   ? memory_->lost(r)
                           : reason == Poison::kFailed ? control_.rank(r).failure.get()
                                                       : "";
  return lockstep::parallel::poison_text(reason, text_of_global(culprit), what);
}

}  // namespace lockstep::parallel
