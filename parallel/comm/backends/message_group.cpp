#include "lockstep/parallel/comm/backends/message_group_internal.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "lockstep/base/check_internal.h"

namespace lockstep::parallel {
namespace {

constexpr std::size_t kHeadersAhead = 4;                 // receives posted in advance
constexpr std::size_t kTransferBytes = 16 * 1024;        // maximum of data after a header of send and recv
constexpr std::size_t kTransferBytesOfAll = 128 * 1024;  // maximum of data after those headers of all ranks
constexpr int kPollsBetweenClocks = 16;                  // polls between two readings of the clock
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
      queues_(1 + 2 * static_cast<std::size_t>(size_)), messages_sent_(static_cast<std::size_t>(size_)),
      messages_received_(static_cast<std::size_t>(size_)), rounds_(exchange_rounds(rank_, size_)),
      headers_(static_cast<std::size_t>(size_)), transfer_headers_(static_cast<std::size_t>(size_)),
      reports_(static_cast<std::size_t>(size_)), own_notes_(static_cast<std::size_t>(size_)),
      report_requests_(static_cast<std::size_t>(size_)), step_outbox_(*transport_, Channel::kFailedSteps),
      failed_steps_(static_cast<std::size_t>(size_)), steps_reported_(static_cast<std::size_t>(size_)) {
  try {
    step_request_ = transport_->receive(kAnyRank, Channel::kFailedSteps, &step_note_, sizeof(Note));
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      const auto r = static_cast<std::size_t>(peer);
      report_requests_[r] = transport_->receive(peer, Channel::kFailures, &reports_[r], sizeof(Note));
      open(transfer_headers_[r], peer, Channel::kTransferHeaders, sizeof(Header) + transfer_bytes_);
    }
    for (const Round& round : rounds_) {
      if (round.from >= 0)
        open(headers_[static_cast<std::size_t>(round.from)], round.from, Channel::kHeaders,
             sizeof(Header) + kExchangedBytes);
    }
  } catch (const PeerLost& lost) {
    throw CommError(fmt::format("init_process_group: {} is gone: {}", text_of(lost.peer), lost.why));
  }
  for (const Queue& queue : queues_) liveness_->add(queue.waits_for);
}

MessageGroup::~MessageGroup() {
  std::unique_lock lock(mutex_);
  if (std::uncaught_exceptions() == 0) {  // during an exception peers may never arrive
    std::vector<std::shared_ptr<MessageWork>> dropped;
    for (int i = 0; i <= size_; ++i) {  // collectives and sends; dropped receives need not finish
      const auto& works = queues_[static_cast<std::size_t>(i)].works;
      dropped.insert(dropped.end(), works.begin(), works.end());
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
    report_to_others(std::uncaught_exceptions() > 0 ? Poison::kLeftByError : Poison::kLeft, global_rank(rank_));
    transport_->hang_up(std::uncaught_exceptions() > 0);
  }
  for (Queue& queue : queues_) {
    queue.thread_wanted.notify_all();
    if (queue.thread.joinable()) queue.thread.join();
  }
  for (const Queue& queue : queues_) liveness_->remove(queue.waits_for);
  lock.lock();
  end_queues();
}

Ref<Storage> MessageGroup::allocate(const Call& call, std::size_t bytes, Device device) {
  const std::lock_guard lock(mutex_);
  failure_.check_usable(call);
  return Storage::allocate(bytes, device);
}

// --- starting -------------------------------------------------------------------------------------------------------

MessageGroup::Queue& MessageGroup::queue_of(const Call& call) {
  if (!call.is_message()) return queues_[0];
  return queues_[static_cast<std::size_t>(1 + (call.kind == Kind::kSend ? 0 : size_) + call.root)];
}

// True if this rank has nothing more to send for the operation. (Gloo completes started sends in a thread of its own.)
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
  Queue& queue = queue_of(work->call);
  queue.works.push_back(work);
  if (failure_) end_queues();
  if (transport_->blocks() && !only_receives(*work)) ask_thread(queue);
  return work;
}

// --- driving --------------------------------------------------------------------------------------------------------

// Posts the first receives from a peer on a channel.
void MessageGroup::open(PostedHeaders& posted, int peer, Channel channel, std::size_t bytes) {
  posted.peer = peer;
  posted.channel = channel;
  for (std::size_t i = 0; i < kHeadersAhead; ++i) post_slot(posted, {std::vector<std::byte>(bytes), nullptr});
}

void MessageGroup::post_slot(PostedHeaders& posted, PostedHeaders::Slot slot) {
  posted.slots.push_back(std::move(slot));
  PostedHeaders::Slot& last = posted.slots.back();
  try {
    last.request = transport_->receive(posted.peer, posted.channel, last.memory.data(), last.memory.size());
  } catch (const PeerLost&) {
    last.request = nullptr;  // the peer has left; receive_header throws for this slot
  }
}

// Returns whether a request is complete. With a deadline, on a transport that blocks, returns only when the request is
// complete.
bool MessageGroup::finish(const MessageWork& work, Request& request, Deadline* deadline) {
  while (!transport_->finish(request, deadline)) {
    if (!deadline) return false;
    if (transport_->is_closed(request.peer())) {  // gloo never completes a send whose connection ends
      if (transport_->finish(request, nullptr)) return true;
      throw PeerLost{request.peer(), "its connection is closed", false};
    }
    check_liveness_blocking(work, request.peer(), *deadline);
  }
  return true;
}

// Posts the front slot, which has been read, again for a later operation.
void MessageGroup::recycle(PostedHeaders& posted) {
  PostedHeaders::Slot slot = std::move(posted.slots.front());
  posted.slots.pop_front();
  post_slot(posted, std::move(slot));
}

// Advances an operation as far as possible: with a deadline, on a transport that blocks, to its end. Returns whether
// the operation is complete.
bool MessageGroup::advance(MessageWork& work, Deadline* deadline) {
  const auto finish_all = [&](Requests& requests) {
    for (; !requests.empty(); requests.pop_back()) {
      if (!finish(work, *requests.back(), deadline)) return false;
    }
    return true;
  };
  if (!work.begun) {
    const Kind kind = work.call.kind;
    PostedHeaders* const posted =
        kind == Kind::kRecv ? &transfer_headers_[static_cast<std::size_t>(work.call.root)] : nullptr;
    if (posted && !receive_header(work, *posted, deadline)) return false;
    if (!work.call.is_message() && !exchange(work, deadline)) return false;
    work.begun = true;
    begin(work);
    if (posted) recycle(*posted);
  }
  for (; work.next_step < work.steps.size(); ++work.next_step) {
    MessageWork::Step& step = work.steps[work.next_step];
    if (!finish_all(step.needs)) return false;
    if (step.then) step.then();
  }
  return finish_all(work.last);
}

// Works on the front of a queue that no other thread works on. Returns whether that operation has completed or failed.
bool MessageGroup::run_front(Queue& queue, std::unique_lock<std::mutex>& lock, Deadline* deadline) {
  const std::shared_ptr<MessageWork> work = queue.works.front();
  queue.is_driven = true;
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
  queue.waits_for.store(kNobody, std::memory_order_relaxed);
  lock.lock();
  queue.is_driven = false;
  if (complete) {
    queue.works.pop_front();
    work->over.store(true, std::memory_order_release);
  }
  if (failure_) end_queues();
  if (work->over) changed_.notify_all();
  if (queue.wants_thread && !queue.works.empty()) queue.thread_wanted.notify_one();
  return work->over;
}

void MessageGroup::ask_thread(Queue& queue) {
  queue.wants_thread = true;
  if (!queue.thread.joinable()) queue.thread = std::thread([this, &queue] { run_thread(queue); });
  queue.thread_wanted.notify_one();
}

void MessageGroup::run_thread(Queue& queue) {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (queue.works.empty()) queue.wants_thread = false;
    if (!queue.wants_thread || queue.is_driven) {
      queue.thread_wanted.wait(lock);
      continue;
    }
    Deadline deadline(timeout_);
    run_front(queue, lock, &deadline);
  }
}

// Advances all queues as far as possible, if the transport does not block.
void MessageGroup::poll_queues(std::unique_lock<std::mutex>& lock) {
  for (Queue& queue : queues_) {
    while (!queue.works.empty() && !queue.is_driven && run_front(queue, lock, nullptr)) continue;
  }
}

void MessageGroup::wait(MessageWork& work) {
  std::unique_lock lock(mutex_);
  Queue& queue = queue_of(work.call);
  Deadline deadline(timeout_);
  Deadline::Clock::time_point last_check = Deadline::Clock::now();
  for (int polls = 1; !work.over; ++polls) {
    if (transport_->blocks()) {
      Deadline front_deadline(timeout_);
      if (queue.is_driven)
        changed_.wait(lock);
      else
        run_front(queue, lock, &front_deadline);
      continue;
    }
    poll_queues(lock);
    if (work.over || polls % kPollsBetweenClocks != 0 || queue.is_driven) continue;
    if (Deadline::Clock::now() - last_check < kBetweenChecks) continue;
    check_liveness(queue, lock, deadline);
    last_check = Deadline::Clock::now();
  }
}

bool MessageGroup::poll(MessageWork& work) {
  std::unique_lock lock(mutex_);
  if (!transport_->blocks()) {
    poll_queues(lock);
  } else if (!work.over) {
    ask_thread(queue_of(work.call));
  }
  return work.over;
}

}  // namespace lockstep::parallel
