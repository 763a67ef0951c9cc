#include "lockstep/parallel/comm/backends/message_group_internal.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "lockstep/base/check_internal.h"

namespace lockstep::parallel {
namespace {

constexpr std::size_t kHeadsAhead = 4;                   // receives posted in advance
constexpr std::size_t kTransferBytes = 16 * 1024;        // maximum of data after a header of send and recv
constexpr std::size_t kTransferBytesOfAll = 128 * 1024;  // maximum of data after those headers of all ranks
constexpr int kPollsBetweenClocks = 16;                  // polls between two looks at the clock
constexpr std::chrono::milliseconds kBetweenChecks{1};

}  // namespace

void MessageWork::wait() {
  if (!over.load(std::memory_order_acquire)) group->wait(*this);
  failure.check();
}

bool MessageWork::is_completed() { return over.load(std::memory_order_acquire) || group->poll(*this); }

MessageGroup::MessageGroup(const InitOptions& options, const Rendezvous& place, std::unique_ptr<Transport> transport)
    : Backend(place), timeout_(options.timeout), canonical_(options.reduction == Reduction::kCanonical),
      transfer_bytes_(
          std::clamp<std::size_t>(kTransferBytesOfAll / static_cast<std::size_t>(size_), 256, kTransferBytes)),
      transport_(std::move(transport)),
      liveness_(place.liveness ? std::static_pointer_cast<MessageLiveness>(place.liveness)
                               : std::make_shared<MessageLiveness>(rank_, size_, transport_)),
      lanes_(1 + 2 * static_cast<std::size_t>(size_)), messages_sent_(static_cast<std::size_t>(size_)),
      messages_received_(static_cast<std::size_t>(size_)), rounds_(exchange_rounds(rank_, size_)),
      heads_(static_cast<std::size_t>(size_)), transfer_heads_(static_cast<std::size_t>(size_)),
      news_(static_cast<std::size_t>(size_)), own_notes_(static_cast<std::size_t>(size_)),
      news_parcels_(static_cast<std::size_t>(size_)), step_outbox_(*transport_, Channel::kFailedSteps),
      failed_steps_(static_cast<std::size_t>(size_)), steps_told_(static_cast<std::size_t>(size_)) {
  try {
    step_parcel_ = transport_->receive(kAnyRank, Channel::kFailedSteps, &step_note_, sizeof(Note));
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      const auto r = static_cast<std::size_t>(peer);
      news_parcels_[r] = transport_->receive(peer, Channel::kFailures, &news_[r], sizeof(Note));
      open(transfer_heads_[r], peer, Channel::kTransferHeads, sizeof(Head) + transfer_bytes_);
    }
    for (const Round& round : rounds_) {
      if (round.from >= 0)
        open(heads_[static_cast<std::size_t>(round.from)], round.from, Channel::kHeads, sizeof(Head) + kExchangedBytes);
    }
  } catch (const PeerLost& lost) {
    throw CommError(fmt::format("init_process_group: {} is gone: {}", text_of(lost.peer), lost.why));
  }
  for (const Lane& lane : lanes_) liveness_->add(lane.waits_for);
}

MessageGroup::~MessageGroup() {
  std::unique_lock lock(mutex_);
  if (std::uncaught_exceptions() == 0) {  // during an exception peers may never arrive
    std::vector<std::shared_ptr<MessageWork>> dropped;
    for (int i = 0; i <= size_; ++i) {  // without receives: dropped ones need not finish
      const auto& queue = lanes_[static_cast<std::size_t>(i)].queue;
      dropped.insert(dropped.end(), queue.begin(), queue.end());
    }
    lock.unlock();
    for (const auto& work : dropped) {
      if (!work->over) wait(*work);
    }
    lock.lock();
  }
  const bool leaves = !failure_;
  if (leaves) failure_ = GroupFailure("its group is gone");  // later failures are not reported
  stopping_ = true;
  lock.unlock();
  if (leaves) {
    tell_others(std::uncaught_exceptions() > 0 ? Poison::kLeftByError : Poison::kLeft, global_rank(rank_));
    transport_->hang_up(std::uncaught_exceptions() > 0);
  }
  for (Lane& lane : lanes_) {
    lane.thread_wanted.notify_all();
    if (lane.thread.joinable()) lane.thread.join();
  }
  for (const Lane& lane : lanes_) liveness_->remove(lane.waits_for);
  lock.lock();
  end_lanes();
}

Ref<Storage> MessageGroup::allocate(const Call& call, std::size_t bytes, Device device) {
  const std::lock_guard lock(mutex_);
  failure_.check_usable(call);
  return Storage::allocate(bytes, device);
}

// --- starting -------------------------------------------------------------------------------------------------------

MessageGroup::Lane& MessageGroup::lane_of(const Call& call) {
  if (!call.is_message()) return lanes_[0];
  return lanes_[static_cast<std::size_t>(1 + (call.kind == Kind::kSend ? 0 : size_) + call.root)];
}

// True if this rank has sent all that the operation needs of it. (gloo sends by itself.)
bool MessageGroup::only_receives(const MessageWork& work) const {
  if (work.call.kind == Kind::kSend) return true;
  const auto rest = rounds_.begin() + static_cast<std::ptrdiff_t>(work.rounds_sent);
  return is_small(work.call) &&
         (work.call.is_message() || std::all_of(rest, rounds_.end(), [](const Round& round) { return round.to < 0; }));
}

std::shared_ptr<Work> MessageGroup::start(Call call) {
  {
    const std::lock_guard lock(mutex_);
    failure_.check_usable(call);
  }
  if (call.is_message())
    ++(call.kind == Kind::kSend ? messages_sent_ : messages_received_)[static_cast<std::size_t>(call.root)];
  auto work = std::make_shared<MessageWork>(this, std::move(call));
  try {
    if (work->call.kind == Kind::kSend)
      send_transfer(*work);
    else if (work->call.kind != Kind::kRecv)
      start_exchange(*work);
  } catch (const PeerLost& lost) {
    fail(explain(*work, lost));  // wait() of the operation throws
  }
  const std::lock_guard lock(mutex_);
  Lane& lane = lane_of(work->call);
  lane.queue.push_back(work);
  if (failure_) end_lanes();
  if (transport_->blocks() && !only_receives(*work)) ask_thread(lane);
  return work;
}

// --- driving --------------------------------------------------------------------------------------------------------

// Posts the first receives from a peer.
void MessageGroup::open(Mailbox& box, int peer, Channel channel, std::size_t bytes) {
  box.peer = peer;
  box.channel = channel;
  for (std::size_t i = 0; i < kHeadsAhead; ++i) post_slot(box, {std::vector<std::byte>(bytes), nullptr});
}

void MessageGroup::post_slot(Mailbox& box, Mailbox::Slot slot) {
  box.slots.push_back(std::move(slot));
  Mailbox::Slot& last = box.slots.back();
  try {
    last.parcel = transport_->receive(box.peer, box.channel, last.memory.data(), last.memory.size());
  } catch (const PeerLost&) {
    last.parcel = nullptr;  // the peer has left; a later listen() to the slot throws
  }
}

// Returns whether a request is complete. With a deadline, on a transport that blocks, returns only when it is
// complete.
bool MessageGroup::finish(const MessageWork& work, Parcel& parcel, Deadline* deadline) {
  while (!transport_->finish(parcel, deadline)) {
    if (!deadline) return false;
    if (transport_->is_closed(parcel.peer())) {  // gloo never completes a send whose connection ends
      if (transport_->finish(parcel, nullptr)) return true;
      throw PeerLost{parcel.peer(), "its connection is closed", false};
    }
    check_hope(work, parcel.peer(), *deadline);
  }
  return true;
}

// Posts the front slot, which has been read, again for a later operation.
void MessageGroup::recycle(Mailbox& box) {
  Mailbox::Slot slot = std::move(box.slots.front());
  box.slots.pop_front();
  post_slot(box, std::move(slot));
}

// Advances an operation as far as possible: to its end with a deadline on a transport that blocks. Returns whether it
// is complete.
bool MessageGroup::advance(MessageWork& work, Deadline* deadline) {
  const auto finish_all = [&](Parcels& parcels) {
    for (; !parcels.empty(); parcels.pop_back()) {
      if (!finish(work, *parcels.back(), deadline)) return false;
    }
    return true;
  };
  if (!work.begun) {
    const Kind kind = work.call.kind;
    Mailbox* const box = kind == Kind::kRecv ? &transfer_heads_[static_cast<std::size_t>(work.call.root)] : nullptr;
    if (box && !receive_head(work, *box, deadline)) return false;
    if (!work.call.is_message() && !exchange(work, deadline)) return false;
    work.begun = true;
    begin(work);
    if (box) recycle(*box);
  }
  for (; work.next_step < work.steps.size(); ++work.next_step) {
    MessageWork::Step& step = work.steps[work.next_step];
    if (!finish_all(step.needs)) return false;
    if (step.then) step.then();
  }
  return finish_all(work.last);
}

// Works on the front of a queue that no other thread works on. Returns whether that operation has completed or failed.
bool MessageGroup::run_front(Lane& lane, std::unique_lock<std::mutex>& lock, Deadline* deadline) {
  const std::shared_ptr<MessageWork> work = lane.queue.front();
  lane.is_driven = true;
  lock.unlock();
  bool complete = false;
  try {
    complete = advance(*work, deadline);
  } catch (const PeerLost& lost) {
    fail(explain(*work, lost));
  } catch (const StepFailed& failed) {
    fail(explain_failed_step(*work, failed.rank));
  } catch (const Disagreement& found) {
    fail({Poison::kDisagreed, global_rank(found.peer),
          fmt::format("{}: ranks disagree: {}", work->call.describe(), found.text), found.text});
  } catch (const std::exception& error) {
    fail({Poison::kFailed, global_rank(rank_), fmt::format("{}: {}", work->call.describe(), error.what()),
          error.what()});
  }
  lane.waits_for.store(kNobody, std::memory_order_relaxed);
  lock.lock();
  lane.is_driven = false;
  if (complete) {
    lane.queue.pop_front();
    work->over.store(true, std::memory_order_release);
  }
  if (failure_) end_lanes();
  if (work->over) changed_.notify_all();
  if (lane.wants_thread && !lane.queue.empty()) lane.thread_wanted.notify_one();
  return work->over;
}

void MessageGroup::ask_thread(Lane& lane) {
  lane.wants_thread = true;
  if (!lane.thread.joinable()) lane.thread = std::thread([this, &lane] { run_thread(lane); });
  lane.thread_wanted.notify_one();
}

void MessageGroup::run_thread(Lane& lane) {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (lane.queue.empty()) lane.wants_thread = false;
    if (!lane.wants_thread || lane.is_driven) {
      lane.thread_wanted.wait(lock);
      continue;
    }
    Deadline deadline(timeout_);
    run_front(lane, lock, &deadline);
  }
}

// Advances all queues as far as possible, if the transport does not block.
void MessageGroup::poll_lanes(std::unique_lock<std::mutex>& lock) {
  for (Lane& lane : lanes_) {
    while (!lane.queue.empty() && !lane.is_driven && run_front(lane, lock, nullptr)) continue;
  }
}

void MessageGroup::wait(MessageWork& work) {
  std::unique_lock lock(mutex_);
  Lane& lane = lane_of(work.call);
  Deadline deadline(timeout_);
  Deadline::Clock::time_point looked = Deadline::Clock::now();
  for (int polls = 1; !work.over; ++polls) {
    if (transport_->blocks()) {
      Deadline own(timeout_);
      lane.is_driven ? changed_.wait(lock) : static_cast<void>(run_front(lane, lock, &own));
      continue;
    }
    poll_lanes(lock);
    if (work.over || polls % kPollsBetweenClocks != 0 || lane.is_driven) continue;
    if (Deadline::Clock::now() - looked < kBetweenChecks) continue;
    look_around(lane, lock, deadline);
    looked = Deadline::Clock::now();
  }
}

bool MessageGroup::poll(MessageWork& work) {
  std::unique_lock lock(mutex_);
  if (!transport_->blocks()) {
    poll_lanes(lock);
  } else if (!work.over) {
    ask_thread(lane_of(work.call));
  }
  return work.over;
}

}  // namespace lockstep::parallel
