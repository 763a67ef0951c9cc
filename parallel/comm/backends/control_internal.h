// The control block of a shared-memory group: what ranks tell each other about the operations in flight.
//
// Everything here is written by peers and trusted for nothing but progress: numbers are compared with what the local
// geometry says, never used as positions. Counters only grow, so a slot is used again without being reset: each side
// knows from its own history where a counter stands before an operation, and where it will stand after it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lockstep/parallel/comm/backend_internal.h"

namespace lockstep::parallel {

inline constexpr int kSlots = kInFlight;             // operations in flight
inline constexpr int kInlineSlots = kSmallInFlight;  // small operations in flight, see kInlineBytes
inline constexpr std::size_t kInlineBytes =
    kSmallBytes;  // up to here two ranks exchange copies instead of sharing work
inline constexpr int kMaxLocalRanks = 256;

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

struct alignas(64) ControlHeader {
  std::atomic<std::uint32_t> events;                // what sleepers sleep on
  alignas(64) std::atomic<std::uint32_t> sleepers;  // nobody wakes anybody while it is 0
  alignas(64) std::atomic<std::uint64_t> poison;    // why the group failed: Poison and culprit + 1
};

struct alignas(64) RankState {
  std::atomic<std::uint64_t> busy;         // 1 + the operation it works on right now, or 0
  std::atomic<std::uint64_t> inline_done;  // small operations it has finished: their copies may be overwritten
  std::atomic<std::uint32_t> left;         // whether it has destroyed its group: Departure
  // While it waits for other ranks: one of them + 1, and a count that grows with every look at it.
  std::atomic<std::uint32_t> waits_for, looks;
};

// How a rank has left its group.
enum class Departure : std::uint32_t { kNone, kInOrder, kByError };

// One rank's arrival at the operation of one slot.
struct alignas(64) Arrival {
  std::atomic<std::uint64_t> sequence;                    // 1 + the operation's number, written last
  std::atomic<std::uint64_t> what, count, place, detail;  // the fingerprint: must be the same on all ranks
  std::atomic<std::uint64_t> ticket;                      // of Reduction::kArrival: drawn on arrival
};

struct alignas(64) Counter {
  std::atomic<std::uint64_t> value;
};

// One direction between two ranks: a ring of bytes.
struct Mailbox {
  alignas(64) std::atomic<std::uint64_t> written;
  alignas(64) std::atomic<std::uint64_t> read;
};

// Where things stand, for `size` ranks.
class Control {
 public:
  Control(std::byte* base, int size) : base_(base), size_(static_cast<std::size_t>(size)) {}

  ControlHeader& header() const { return at<ControlHeader>(0); }
  RankState& rank(int r) const { return at<RankState>(ranks() + index(r) * sizeof(RankState)); }
  Arrival& arrival(std::size_t slot, int r) const {
    return at<Arrival>(arrivals() + (slot * size_ + index(r)) * sizeof(Arrival));
  }
  // Tasks of one rank's share that somebody has claimed.
  Counter& claimed(std::size_t slot, int r) const {
    return at<Counter>(claims() + (slot * size_ + index(r)) * sizeof(Counter));
  }
  // Tasks that are done, of all shares.
  Counter& done(std::size_t slot) const { return at<Counter>(dones() + slot * sizeof(Counter)); }
  // Tickets that were drawn, so far.
  Counter& tickets(std::size_t slot) const { return at<Counter>(draws() + slot * sizeof(Counter)); }
  std::byte* inline_data(int r, std::uint64_t number) const {
    return base_ + inlines() + (index(r) * kInlineSlots + number % kInlineSlots) * kInlineBytes;
  }
  Mailbox& mailbox(int from, int to) const { return at<Mailbox>(box(from, to)); }
  std::byte* mailbox_data(int from, int to) const { return base_ + box(from, to) + sizeof(Mailbox); }
  std::size_t mailbox_bytes() const { return mailbox_bytes(size_); }

  static std::size_t bytes(int size) {
    const Control layout(nullptr, size);
    return layout.mailboxes() + layout.size_ * layout.size_ * (sizeof(Mailbox) + layout.mailbox_bytes());
  }

 private:
  template <class T>
  T& at(std::size_t offset) const {
    return *reinterpret_cast<T*>(base_ + offset);
  }
  static std::size_t index(int r) { return static_cast<std::size_t>(r); }
  static std::size_t mailbox_bytes(std::size_t size) { return size > 64 ? 1024 : 65536 / size / 64 * 64; }
  std::size_t ranks() const { return sizeof(ControlHeader); }
  std::size_t arrivals() const { return ranks() + size_ * sizeof(RankState); }
  std::size_t claims() const { return arrivals() + kSlots * size_ * sizeof(Arrival); }
  std::size_t dones() const { return claims() + kSlots * size_ * sizeof(Counter); }
  std::size_t draws() const { return dones() + kSlots * sizeof(Counter); }
  std::size_t inlines() const { return (draws() + kSlots * sizeof(Counter) + 4095) / 4096 * 4096; }
  std::size_t mailboxes() const { return inlines() + size_ * kInlineSlots * kInlineBytes; }
  std::size_t box(int from, int to) const {
    return mailboxes() + (index(from) * size_ + index(to)) * (sizeof(Mailbox) + mailbox_bytes());
  }

  std::byte* base_;
  std::size_t size_;
};

}  // namespace lockstep::parallel
