#include "lockstep/parallel/comm/backends/shared_transfer_internal.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "lockstep/parallel/comm/backends/sleep_internal.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::parallel {
namespace {

// Copies between a ring (from its byte `at` on) and plain memory.
void ring_copy(std::byte* ring, std::size_t ring_bytes, std::uint64_t at, std::byte* data, std::size_t count, bool in) {
  const std::size_t start = at % ring_bytes, first = std::min(count, ring_bytes - start);
  if (in) {
    std::memcpy(ring + start, data, first);
    std::memcpy(ring, data + first, count - first);
  } else {
    std::memcpy(data, ring + start, first);
    std::memcpy(data + first, ring, count - first);
  }
}

}  // namespace

Transfer::Transfer(SharedGroup* group, Call call)
    : GroupWork(group), call_(std::move(call)), bytes_(static_cast<std::size_t>(call_.count) * item_size(call_.dtype)) {
  if (call_.kind == Kind::kSend) header_ = header_of(call_);
}

Transfer::Header Transfer::header_of(const Call& call) {
  const std::uint64_t fields[3] = {static_cast<std::uint64_t>(call.tag), static_cast<std::uint64_t>(call.dtype),
                                   static_cast<std::uint64_t>(call.count)};
  Header header;
  std::memcpy(header.data(), fields, sizeof(fields));
  return header;
}

void Transfer::check_header() {
  const Header expected = header_of(call_);
  if (header_ == expected) return;
  std::uint64_t got[3];
  std::memcpy(got, header_.data(), sizeof(got));
  disagreement_ = fmt::format("rank {} sent {} {} with tag {}, expected {} {} with tag {}", call_.root, got[2],
                              got[1] < kDTypeCount ? lockstep::name(static_cast<DType>(got[1])) : "?",
                              static_cast<std::int64_t>(got[0]), call_.count, lockstep::name(call_.dtype), call_.tag);
}

bool Transfer::advance(const Control& control, int rank) {
  const bool sending = call_.kind == Kind::kSend;
  const int from = sending ? rank : call_.root, to = sending ? call_.root : rank;
  Mailbox& box = control.mailbox(from, to);
  const std::size_t ring_bytes = control.mailbox_bytes();
  const std::uint64_t written = box.written.load(std::memory_order_acquire);
  const std::uint64_t read = box.read.load(std::memory_order_acquire);
  const std::uint64_t filled = written - read;
  if (filled > ring_bytes) return false;  // a faulty peer: the deadline reports it
  std::size_t room = sending ? ring_bytes - filled : filled, moved = 0;
  while (room > 0 && !complete() && disagreement_.empty()) {
    const bool in_header = position_ < header_.size();
    const std::size_t left = in_header ? header_.size() - position_ : header_.size() + bytes_ - position_;
    const std::size_t count = std::min(room, left);
    std::byte* const payload = static_cast<std::byte*>((sending ? call_.in : call_.out).raw_data());
    std::byte* const data = in_header ? header_.data() + position_ : payload + (position_ - header_.size());
    ring_copy(control.mailbox_data(from, to), ring_bytes, (sending ? written : read) + moved, data, count, sending);
    position_ += count;
    moved += count;
    room -= count;
    if (!sending && in_header && position_ == header_.size()) check_header();
  }
  if (moved == 0) return false;
  (sending ? box.written : box.read).fetch_add(moved, std::memory_order_seq_cst);
  return true;
}

void Transfer::wait() {
  if (group) group->wait(*this);
  failure.check();
}

bool Transfer::is_completed() {
  if (group) group->progress_transfers();
  return !group;
}

std::shared_ptr<Work> SharedGroup::start_transfer(Call call) {
  auto transfer = std::make_shared<Transfer>(this, std::move(call));
  transfers_.push_back(transfer);
  progress_transfers();
  return transfer;
}

// Moves bytes for the oldest transfer of each peer and direction.
bool SharedGroup::progress_transfers() {
  std::vector<bool> waits(2 * static_cast<std::size_t>(size_), false);
  bool any = false;
  std::shared_ptr<Transfer> broken;
  for (const auto& transfer : transfers_) {
    const Call& call = transfer->call();
    auto behind = waits.begin() + (call.kind == Kind::kSend ? 0 : size_) + call.root;
    if (*behind) continue;
    any = transfer->advance(control_, rank_) || any;
    if (transfer->complete()) transfer->group = nullptr;
    *behind = !transfer->complete();
    if (!transfer->disagreement().empty()) broken = transfer;
  }
  std::erase_if(transfers_, [](const auto& transfer) { return transfer->complete(); });
  if (any && control_.header().sleepers.load(std::memory_order_seq_cst) != 0) wake(size_);
  if (broken)
    fail(Poison::kDisagreed, broken->call().root,
         fmt::format("{}: {}", broken->call().describe(), broken->disagreement()));
  return any;
}

void SharedGroup::wait(Transfer& transfer) {
  failure_.check_usable(transfer.call());
  for (Spin spin(spins_); transfer.group && spin.next();) progress_transfers();
  Deadline deadline(timeout_);
  const WaitingSign sign(control_.rank(rank_));
  while (transfer.group) {
    {
      Sleeper sleeper(control_.header());
      advance_before(next_sequence_);  // the peer may wait for these first
      if (progress_transfers() || !transfer.group) continue;
      sleeper.sleep(deadline.slice());
    }
    if (!progress_transfers() && transfer.group) look_for(transfer.call(), deadline);
  }
}

// Finishes dropped sends before the group is destroyed.
void SharedGroup::finish_transfers() {
  const std::vector<std::shared_ptr<Transfer>> pending = transfers_;
  for (const auto& transfer : pending) {
    try {
      if (transfer->call().kind == Kind::kSend && !failure_ && std::uncaught_exceptions() == 0) wait(*transfer);
    } catch (const Error&) {
      // The user did not wait for the transfer, so its error is ignored.
    }
    if (transfer->group) transfer->fail_without_group(transfer->call());
  }
}

// Liveness check of the peer of a send or recv, as look_around for collectives.
void SharedGroup::look_for(const Call& call, Deadline& deadline) {
  const int peer = call.root;
  if (gone(peer)) {
    while (progress_transfers()) {
    }  // bytes that the peer wrote before it left
    if (std::ranges::none_of(transfers_, [&](const auto& t) { return &t->call() == &call; })) return;
    fail_if_gone(call, peer);
  }
  fail_if_poisoned(call);
  say_waits_for(peer);
  if (!deadline.passed()) return;
  const std::vector<int> silent = find_silent(call, {peer});
  fail(Poison::kLate, silent.front(),
       fmt::format("{}: rank {} did not answer within {} ms", call.describe(), silent.front(), timeout_.count()), true);
}

}  // namespace lockstep::parallel
