// local: ranks are threads of one process. For tests and for teaching: the same engine as shm, on plain memory.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

#include "lockstep/parallel/comm/backends/shared_group_internal.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/device.h"

namespace lockstep::parallel {
namespace {

std::shared_ptr<Segment> map_segment(std::size_t block_bytes, std::size_t blocks) {
  const std::size_t bytes = block_bytes * blocks;
  void* const base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED)
    throw DeviceError(
        fmt::format("local: no memory for {} blocks of {} bytes: {}", blocks, block_bytes, std::strerror(errno)));
  return std::make_shared<Segment>(static_cast<std::byte*>(base), block_bytes,
                                   std::shared_ptr<void>(base, [bytes](void* p) { munmap(p, bytes); }));
}

// What the threads of one group meet at.
struct Meeting {
  struct Offer {
    std::shared_ptr<Segment> segment;
    int takers;  // ranks that have yet to pick it up
  };
  std::shared_ptr<Segment> control, arena;
  std::mutex mutex;
  std::map<std::uint64_t, Offer> offers;  // by the number of the allocation
};

class LocalMemory final : public SharedMemory {
 public:
  LocalMemory(std::shared_ptr<Meeting> meeting, int rank, int size)
      : meeting_(std::move(meeting)), rank_(rank), size_(size) {}

  std::shared_ptr<Segment> allocate(std::size_t block_bytes, Deadline&) override {
    const std::lock_guard lock(meeting_->mutex);
    const auto [entry, first] = meeting_->offers.try_emplace(allocations_++, Meeting::Offer{nullptr, size_});
    if (first) entry->second.segment = map_segment(block_bytes, static_cast<std::size_t>(size_));
    const std::shared_ptr<Segment> segment = entry->second.segment;
    if (--entry->second.takers == 0) meeting_->offers.erase(entry);
    if (!segment) throw DeviceError("local: another rank found no memory");
    return segment;
  }
  std::shared_ptr<Segment> arena() override { return meeting_->arena; }
  void reserve_arena(std::size_t, std::size_t) override {}  // the memory of a process comes as it is touched
  void release_arena(std::size_t bytes) override {
    if (bytes > 0) madvise(meeting_->arena->block(rank_), bytes, MADV_DONTNEED);  // best effort
  }
  int cores() override { return usable_cores(); }
  std::string lost(int) override { return {}; }  // a thread that is gone has left the group before

 private:
  std::shared_ptr<Meeting> meeting_;
  int rank_, size_;
  std::uint64_t allocations_ = 0;
};

// Rank 0 makes the meeting and leaves its address in the store, until everybody holds it.
std::shared_ptr<Meeting> meet(const Rendezvous& place) {
  Store& store = *place.store;
  if (place.rank != 0) {
    const std::string process = store.get("local/process");
    LOCKSTEP_CHECK(process == std::to_string(getpid()),
                   "local: rank 0 is in process {}, rank {} in {}; ranks of this backend are threads, use shm", process,
                   place.rank, getpid());
    const std::uintptr_t address = std::stoull(store.get("local/meeting"));
    std::shared_ptr<Meeting> meeting = *reinterpret_cast<const std::shared_ptr<Meeting>*>(address);
    if (store.add("local/arrived", 1) == place.size - 1) store.set("local/complete", "1");
    return meeting;
  }
  const auto meeting = std::make_shared<Meeting>();
  meeting->arena = map_segment(kArenaBytes, static_cast<std::size_t>(place.size));
  meeting->control = map_segment((Control::bytes(place.size) + kPage - 1) / kPage * kPage, 1);
  store.set("local/process", std::to_string(getpid()));
  auto published = std::make_unique<std::shared_ptr<Meeting>>(meeting);
  store.set("local/meeting", std::to_string(reinterpret_cast<std::uintptr_t>(published.get())));
  try {
    store.get("local/complete");
  } catch (const Error&) {
    static_cast<void>(published.release());  // a rank that comes late still looks there: better lost than dangling
    throw;
  }
  return meeting;
}

}  // namespace

std::unique_ptr<Backend> make_local(const InitOptions& options, const Rendezvous& place) {
  LOCKSTEP_CHECK(place.size <= kMaxLocalRanks, "local: {} ranks, at most {}", place.size, kMaxLocalRanks);
  const std::shared_ptr<Meeting> meeting = meet(place);
  return std::make_unique<SharedGroup>(
      "local", options, place, std::make_unique<LocalMemory>(meeting, place.rank, place.size), meeting->control);
}

}  // namespace lockstep::parallel
