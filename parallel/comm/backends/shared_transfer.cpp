#include "lockstep/parallel/comm/backends/shared_transfer_internal.h"
#include "lockstep/parallel/comm/silent_ranks_internal.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "lockstep/base/check_internal.h"

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

Transfer::Transfer(SharedGroup* group, Call call) : GroupWork(group), call_(std::move(call)), bytes_(call_.bytes()) {
  if (call_.kind == Kind::kSend) header_ = header_of(call_);
}

Transfer::Header Transfer::header_of(const Call& call) {
  return {static_cast<std::uint64_t>(call.tag), static_cast<std::uint64_t>(call.dtype),
          static_cast<std::uint64_t>(call.count)};
}

void Transfer::check_header() {
  if (header_ == header_of(call_)) return;
  const auto [tag, dtype, count] = header_;
  disagreement_ =
      fmt::format("{} sent {} {} with tag {}, expected {} {} with tag {}", rank_text(call_.root, call_.global_root),
                  count, dtype < kDTypeCount ? lockstep::name(static_cast<DType>(dtype)) : "?",
                  static_cast<std::int64_t>(tag), call_.count, lockstep::name(call_.dtype), call_.tag);
}

bool Transfer::advance(const Control& control, int rank) {
  const bool sending = call_.kind == Kind::kSend;
  const int from = sending ? rank : call_.root, to = sending ? call_.root : rank;
  TransferRing& box = control.ring(from, to);
  const std::size_t ring_bytes = control.ring_bytes();
  const std::uint64_t written = box.written.load(std::memory_order_acquire);
  const std::uint64_t read = box.read.load(std::memory_order_acquire);
  const std::uint64_t filled = written - read;
  if (filled > ring_bytes) return false;  // a faulty peer: the deadline reports it
  std::size_t room = sending ? ring_bytes - filled : filled, moved = 0;
  while (room > 0 && !complete() && disagreement_.empty()) {
    const bool in_header = position_ < sizeof(Header);
    const std::size_t left = in_header ? sizeof(Header) - position_ : sizeof(Header) + bytes_ - position_;
    const std::size_t count = std::min(room, left);
    std::byte* const payload = static_cast<std::byte*>((sending ? call_.in : call_.out).raw_data());
    std::byte* const data =
        in_header ? reinterpret_cast<std::byte*>(header_.data()) + position_ : payload + (position_ - sizeof(Header));
    ring_copy(control.ring_data(from, to), ring_bytes, (sending ? written : read) + moved, data, count, sending);
    position_ += count;
    moved += count;
    room -= count;
    if (!sending && in_header && position_ == sizeof(Header)) check_header();
  }
  if (moved == 0) return false;
  (sending ? box.written : box.read).fetch_add(moved, std::memory_order_seq_cst);
  return true;
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
  if (any) wake_sleepers(control_.header());
  if (broken)
    fail(Poison::kDisagreed, broken->call().root,
         fmt::format("{}: {}", broken->call().describe(), broken->disagreement()));
  return any;
}

bool SharedGroup::progress() {
  if (!failure_ && !transfers_.empty()) progress_transfers();
  return !failure_ && !transfers_.empty();
}

void SharedGroup::wait(Transfer& transfer) {
  failure_.check_usable(transfer.call());
  const auto is_done = [&] {
    advance_before(next_sequence_);  // the peer may wait for these first
    while (progress_transfers()) continue;
    return !transfer.group;
  };
  wait_until(is_done, [&](Deadline& deadline) { check_peer(transfer.call(), deadline); });
}

bool SharedGroup::poll(Transfer& transfer) {
  progress_transfers();
  return !transfer.group;
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

// Liveness check of the peer of a send or recv, as check_liveness for collectives.
void SharedGroup::check_peer(const Call& call, Deadline& deadline) {
  const int peer = call.root;
  const auto failed_steps = [&](int r) { return control_.rank(r).failed_steps.load(std::memory_order_acquire); };
  if (gone(peer) || failed_steps(peer) > failed_steps(rank_)) {
    while (progress_transfers()) {
    }  // bytes that the peer wrote before it left, or before its step failed
    if (std::ranges::none_of(transfers_, [&](const auto& t) { return &t->call() == &call; })) return;
    if (failed_steps(peer) > failed_steps(rank_)) fail_step(call, peer);
    fail_if_gone(call, peer);
  }
  fail_if_poisoned(call);
  publish_awaited_rank(peer);
  if (!deadline.passed()) return;
  const std::vector<int> silent = find_silent(call, {peer});
  const std::string text = text_of_silent(
      silent, {global_rank(peer)}, [&](int global) { return text_of_global(global); },
      [](int) { return "did not answer"; });
  fail_late(silent.front(), not_complete(call, timeout_, text));
}

}  // namespace lockstep::parallel
