// The engine of the shared-memory backends, local (threads) and shm (processes). Waiting ranks do the work.
//
// Launching an operation copies this rank's data into shared memory (communication memory needs no copy) and records
// that the rank has arrived. A waiting rank spins briefly until all ranks have arrived, then claims tasks, those of its
// own share first, until none is left, and then sleeps. So once all ranks have launched an operation, a single waiting
// rank can finish it.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/spin_internal.h"
#include "lockstep/parallel/comm/backend_internal.h"
#include "lockstep/parallel/comm/backends/control_internal.h"
#include "lockstep/parallel/comm/backends/segment_internal.h"
#include "lockstep/parallel/comm/backends/sleep_internal.h"
#include "lockstep/parallel/comm/group_failure_internal.h"
#include "lockstep/parallel/comm/progress_internal.h"

namespace lockstep::parallel {

class SharedGroup;
class Transfer;

// Where the ranks' data of an operation is: rank r's data begins offset + r * step bytes into rank r's block.
struct Location {
  std::byte* of(int rank) const { return segment->block(rank) + offset + static_cast<std::size_t>(rank) * step; }
  std::uint64_t place() const { return id << 48 | offset; }  // for the fingerprint

  const Segment* segment = nullptr;  // kept alive by the call's tensor, or the arena
  std::size_t offset = 0, step = 0;
  std::uint64_t id = 0;  // of communication memory: number of the group's allocation
};

// A call, or one piece of a large call: elements [first, first + count) of every rank's part.
class Operation final : public GroupWork<SharedGroup, Operation> {
 public:
  Operation(SharedGroup* group, std::shared_ptr<const Call> call) : GroupWork(group), call(std::move(call)) {}
  bool is_known_complete() override;

  enum class Path : std::uint8_t { kArrivalsOnly, kInline, kDirect, kStaged };

  std::shared_ptr<const Call> call;
  Path path = Path::kArrivalsOnly;
  std::int64_t first = 0, count = 0;
  std::uint64_t sequence = 0;
  std::uint64_t inline_number = 0;          // kInline: number of the small operation
  Location in = {}, out = {};               // kDirect, kStaged
  std::size_t region = 0;                   // kStaged: offset of the data in each block of the arena
  bool single_task = false;                 // too small to be shared
  std::int64_t chunk = 0;                   // elements of a task
  std::vector<std::uint64_t> tasks;         // number of tasks in each rank's share
  std::vector<std::uint64_t> claimed_from;  // the slot's claim counters before the operation
  std::uint64_t done_at = 0;                // the slot's done counter after all tasks
  std::uint64_t tickets_from = 0;           // Reduction::kArrival: the slot's ticket counter before the operation
  std::vector<int> order = {};              // Reduction::kArrival: ranks in the order of arrival, once needed
  unsigned polls = 0;                       // calls of is_completed that have found it incomplete
  bool agreed = false;                      // all ranks have arrived with the same fingerprint
};

// The liveness of all ranks of the original group, by global rank: a part of the control block of that group.
class SharedLiveness final : public Liveness {
 public:
  SharedLiveness(std::shared_ptr<Segment> segment, const Control& control, int size)
      : size(size), segment_(std::move(segment)), control_(control) {}
  std::atomic<std::uint32_t>& waits_for(int global_rank) const { return control_.rank(global_rank).waits_for; }
  std::atomic<std::uint32_t>& liveness_checks(int global_rank) const {
    return control_.rank(global_rank).liveness_checks;
  }

  const int size;

 private:
  std::shared_ptr<Segment> segment_;
  Control control_;
};

class SharedGroup final : public Backend {
 public:
  SharedGroup(const InitOptions& options, const Rendezvous& place, std::unique_ptr<SharedMemory> memory,
              std::shared_ptr<Segment> control);
  ~SharedGroup() override;

  Ref<Storage> allocate(const Call& call, std::size_t bytes, Device device) override;
  std::shared_ptr<Work> start(Call call) override;
  void* address_in(int rank, const void* own, std::size_t bytes) const override;
  std::shared_ptr<Liveness> liveness() const override { return liveness_; }
  void release_staging() override;
  void fail_group(const std::string& why) override;
  bool has_failed() override { return static_cast<bool>(failure_); }
  bool progress() override;
  std::uint32_t step_failed(std::uint64_t next, const std::string& why) override;

  // --- called by the operations ---
  void wait(Operation& op);
  bool poll(Operation& op);
  bool is_done_by_others(const Operation& op) const;
  void wait(Transfer& transfer);
  bool poll(Transfer& transfer);

 private:
  struct CommunicationMemory {
    std::uint64_t id;
    std::weak_ptr<Segment> segment;
  };

  // --- launching (shared_group.cpp) ---
  std::shared_ptr<Operation> launch(const std::shared_ptr<const Call>& call, std::int64_t first, std::int64_t count);
  void choose_path(Operation& op);
  bool find_direct(Operation& op) const;
  Location find(const void* own, std::size_t bytes) const;
  void stage(Operation& op);
  void reserve(Operation& op, std::size_t bytes);
  void put_inline(Operation& op);
  void arrive(const std::shared_ptr<Operation>& op);
  void exchange(const Call& call);

  // --- finishing (shared_wait.cpp) ---
  template <class Check, class Look>
  void wait_until(Check is_done, Look look);
  bool advance(Operation& op);
  bool advance_to(Operation& op);
  void advance_before(std::uint64_t end);
  bool all_arrived(const Operation& op) const;
  void compare_fingerprints(Operation& op);
  void work(Operation& op);
  void take_order(Operation& op);
  bool claim(const Operation& op, int owner, std::uint64_t* task);
  void finish(Operation& op);
  void check_liveness(const Call& call, std::uint64_t sequence, Deadline* deadline);
  [[noreturn]] void fail(Poison reason, int culprit, const std::string& message);
  [[noreturn]] void fail_late(int global_culprit, const std::string& message);
  Departure departure(int rank) const;
  bool gone(int rank);
  void fail_if_gone(const Call& call, int rank);
  void fail_if_poisoned(const Call& call);
  void fail_step(const Call& call, int rank);
  [[noreturn]] void fail_alone(const Call& call, const LocalFailure& error);
  void report(Poison reason, int global_culprit);
  std::string formation_failure();
  [[noreturn]] void fail_broken(const Call& call, const std::string& why);
  std::vector<int> find_silent(const Call& call, const std::vector<int>& late);
  void publish_awaited_rank(int rank);
  [[noreturn]] void give_up(GroupFailure failure);
  void abandon(GroupFailure failure);
  std::string poison_text(std::uint64_t poison);

  // --- point to point (shared_transfer.cpp) ---
  std::shared_ptr<Work> start_transfer(Call call);
  bool progress_transfers();
  void finish_transfers();
  void check_peer(const Call& call, Deadline& deadline);

  std::chrono::milliseconds timeout_;
  std::shared_ptr<FormationWatch> watch_;  // until the group is complete; may be null
  std::unique_ptr<SharedMemory> memory_;
  int spins_;
  std::shared_ptr<Segment> control_segment_;
  Control control_;
  std::shared_ptr<SharedLiveness> liveness_;
  GroupFailure failure_;  // why the group is unusable

  Deadline::Clock::time_point departed_{};  // when this rank first saw that a needed rank has left because of an error
  std::uint64_t next_sequence_ = 0, next_inline_ = 0, inline_finished_ = 0, next_segment_ = 1;
  std::array<std::shared_ptr<Operation>, kSlots> in_flight_;
  std::uint64_t oldest_ = 0;                                       // no operation before it is in flight
  std::array<std::vector<std::uint64_t>, kSlots> claimed_so_far_;  // by slot: counters after all launched operations
  std::array<std::uint64_t, kSlots> done_so_far_{}, tickets_so_far_{};
  std::vector<CommunicationMemory> communication_memory_;
  std::shared_ptr<Segment> arena_;  // ring of staged data, as large as needed so far
  std::size_t arena_reserved_ = 0, arena_head_ = 0;
  std::vector<std::shared_ptr<Transfer>> transfers_;
};

// Messages of other groups do not wake this rank, so it looks for them at this interval.
inline constexpr std::chrono::milliseconds kProgressSlice(1);

// Spins, then sleeps in slices until `is_done`. Calls `look`, a liveness check, after every slice.
template <class Check, class Look>
void SharedGroup::wait_until(Check is_done, Look look) {
  Spin spin(spins_, /*yields=*/true);
  do {
    if (is_done()) return;
  } while (spin.next());
  Deadline deadline(timeout_);
  while (!is_done()) {
    const bool others_move = ProgressGuard::progress();
    {
      Sleeper sleeper(control_.header());
      if (is_done()) break;
      sleeper.sleep(others_move ? std::min(deadline.slice(), kProgressSlice) : deadline.slice());
    }
    if (!is_done()) look(deadline);
  }
  liveness_->waits_for(global_rank(rank_)).store(0, std::memory_order_relaxed);
}

// --- copies and tasks of an operation (shared_tasks.cpp) ---
std::size_t region_bytes(const Operation& op, int size);  // per rank
void lay_out(Operation& op, const Segment& arena, int size);
void copy_in(const Operation& op, int rank, int size);
void copy_out(const Operation& op, int rank, int size);
void plan_tasks(Operation& op, int size);
void run_task(const Operation& op, int owner, std::uint64_t task, int size);
void run_inline(const Operation& op, const void* const* inputs, int rank);

}  // namespace lockstep::parallel
