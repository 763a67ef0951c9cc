// The control block of a shared-memory group: the state of the operations in flight, shared by all ranks.
//
// Peers write this memory, so its values are trusted for progress only: numbers are compared with the local geometry
// and never used as positions. Counters only grow, so a slot is reused without a reset: each rank knows from its own
// history a counter's value before and after an operation.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/parallel/comm/backend_internal.h"
#include "lockstep/parallel/comm/group_failure_internal.h"

namespace lockstep::parallel {

inline constexpr int kSlots = kInFlight;             // operations in flight
inline constexpr int kInlineSlots = kSmallInFlight;  // small operations in flight, see kInlineBytes
inline constexpr std::size_t kInlineBytes =
    kSmallBytes;  // up to here two ranks exchange copies instead of sharing work
inline constexpr int kMaxLocalRanks = 256;

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

struct alignas(64) ControlHeader {
  std::atomic<std::uint32_t> events;                // the futex on which ranks sleep
  alignas(64) std::atomic<std::uint32_t> sleepers;  // number of sleeping ranks; none is woken if 0
  alignas(64) std::atomic<std::uint64_t> poison;    // why the group failed: Poison and global rank of the culprit + 1
};

// A text that peers read once another value says that it is complete.
class SharedText {
 public:
  void set(std::string_view text) {
    char bytes[kBytes] = {};
    first_line(text, kBytes).copy(bytes, kBytes);
    const auto words = std::bit_cast<Words>(bytes);
    for (std::size_t i = 0; i < words.size(); ++i) words_[i].store(words[i], std::memory_order_relaxed);
  }
  std::string get() const {
    Words words = {};
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = words_[i].load(std::memory_order_relaxed);
    return printable(std::bit_cast<std::array<char, kBytes>>(words));
  }

 private:
  static constexpr std::size_t kBytes = 384;
  using Words = std::array<std::uint64_t, kBytes / 8>;
  std::array<std::atomic<std::uint64_t>, kBytes / 8> words_;
};

struct alignas(64) RankState {
  std::atomic<std::uint64_t> busy;         // 1 + the operation whose task the rank runs, or 0
  std::atomic<std::uint64_t> inline_done;  // small operations the rank has finished: their copies may be overwritten
  std::atomic<std::uint32_t> left;         // whether the rank has destroyed its group: Departure
  // While the rank waits for others, in any group: 1 + the global rank of one of them, and a count of its liveness
  // checks. Used only in the original group, by all groups that are split from it: see SharedLiveness.
  std::atomic<std::uint32_t> waits_for, liveness_checks;
  std::atomic<std::uint32_t> failed_steps;  // steps of the rank that an exception has ended
  alignas(64) SharedText failure;           // of this rank alone: for Poison::kFailed, and of its last failed step
};

// How a rank has left its group.
enum class Departure : std::uint32_t { kNone, kInOrder, kByError };

inline constexpr std::uint64_t kNotDirect = ~std::uint64_t{0};

// The values that must be equal on all ranks.
struct Fingerprint {
  // signature_of the call, its count, Location::place() of `in` and `out` or kNotDirect, and Call::detail
  std::uint64_t what = 0, count = 0, in_at = 0, out_at = 0, detail = 0;
  std::uint32_t failed_steps = 0;
  bool operator==(const Fingerprint&) const = default;
};

// One rank's arrival at the operation of one slot.
struct alignas(64) Arrival {
  Fingerprint fingerprint() const {
    const auto get = [](const auto& x) { return x.load(std::memory_order_acquire); };
    return {get(what), get(count), get(in_at), get(out_at), get(detail), get(failed_steps)};
  }
  void set_purpose(const PurposeName& name, std::uint64_t of) {
    const auto words = std::bit_cast<PurposeWords>(name);
    for (std::size_t i = 0; i < words.size(); ++i) purpose[i].store(words[i], std::memory_order_relaxed);
    purpose_of.store(of, std::memory_order_release);
  }
  // Returns the purpose of the operation at which `sequence` has the value `of`; empty if the operation has none.
  PurposeName purpose_at(std::uint64_t of) const {
    PurposeWords words = {};
    if (purpose_of.load(std::memory_order_acquire) != of) return {};
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = purpose[i].load(std::memory_order_acquire);
    return std::bit_cast<PurposeName>(words);
  }

  std::atomic<std::uint64_t> sequence;                            // 1 + the operation's number, written last
  std::atomic<std::uint64_t> what, count, in_at, out_at, detail;  // the fingerprint, with
  std::atomic<std::uint32_t> failed_steps;
  std::atomic<std::uint64_t> ticket;  // for Reduction::kArrival: order of arrival
  // In a line of its own, which is touched only by operations with a purpose, and to explain a disagreement:
  alignas(64) std::atomic<std::uint64_t> purpose_of;  // the value of `sequence` that `purpose` belongs to
  std::array<std::atomic<std::uint64_t>, 3> purpose;

 private:
  using PurposeWords = std::array<std::uint64_t, 3>;
};

struct alignas(64) Counter {
  std::atomic<std::uint64_t> value;
};

// One direction between two ranks: a ring of bytes.
struct TransferRing {
  alignas(64) std::atomic<std::uint64_t> written;
  alignas(64) std::atomic<std::uint64_t> read;
};

// The layout of the control block for `size` ranks.
class Control {
 public:
  Control(std::byte* base, int size) : base_(base), size_(static_cast<std::size_t>(size)) {}

  ControlHeader& header() const { return at<ControlHeader>(0); }
  RankState& rank(int r) const { return at<RankState>(ranks() + index(r) * sizeof(RankState)); }
  Arrival& arrival(std::size_t slot, int r) const {
    return at<Arrival>(arrivals() + (slot * size_ + index(r)) * sizeof(Arrival));
  }
  // Number of claimed tasks of one rank's share.
  Counter& claimed(std::size_t slot, int r) const {
    return at<Counter>(claims() + (slot * size_ + index(r)) * sizeof(Counter));
  }
  // Number of completed tasks of all shares.
  Counter& done(std::size_t slot) const { return at<Counter>(dones() + slot * sizeof(Counter)); }
  // Number of tickets drawn so far.
  Counter& tickets(std::size_t slot) const { return at<Counter>(draws() + slot * sizeof(Counter)); }
  std::byte* inline_data(int r, std::uint64_t number) const {
    return base_ + inlines() + (index(r) * kInlineSlots + number % kInlineSlots) * kInlineBytes;
  }
  TransferRing& ring(int from, int to) const { return at<TransferRing>(box(from, to)); }
  std::byte* ring_data(int from, int to) const { return base_ + box(from, to) + sizeof(TransferRing); }
  std::size_t ring_bytes() const { return ring_bytes(size_); }

  static std::size_t bytes(int size) {
    const Control layout(nullptr, size);
    return layout.rings() + layout.size_ * layout.size_ * (sizeof(TransferRing) + layout.ring_bytes());
  }

 private:
  template <class T>
  T& at(std::size_t offset) const {
    return *reinterpret_cast<T*>(base_ + offset);
  }
  static std::size_t index(int r) { return static_cast<std::size_t>(r); }
  static std::size_t ring_bytes(std::size_t size) { return size > 64 ? 1024 : 65536 / size / 64 * 64; }
  std::size_t ranks() const { return sizeof(ControlHeader); }
  std::size_t arrivals() const { return ranks() + size_ * sizeof(RankState); }
  std::size_t claims() const { return arrivals() + kSlots * size_ * sizeof(Arrival); }
  std::size_t dones() const { return claims() + kSlots * size_ * sizeof(Counter); }
  std::size_t draws() const { return dones() + kSlots * sizeof(Counter); }
  std::size_t inlines() const { return (draws() + kSlots * sizeof(Counter) + 4095) / 4096 * 4096; }
  std::size_t rings() const { return inlines() + size_ * kInlineSlots * kInlineBytes; }
  std::size_t box(int from, int to) const {
    return rings() + (index(from) * size_ + index(to)) * (sizeof(TransferRing) + ring_bytes());
  }

  std::byte* base_;
  std::size_t size_;
};

}  // namespace lockstep::parallel
