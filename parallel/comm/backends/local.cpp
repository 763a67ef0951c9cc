// local: ranks are threads of one process, for tests and for teaching. It uses the engine of shm on private memory.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

#include "lockstep/base/byte_reader_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/base/device.h"
#include "lockstep/parallel/comm/backends/shared_group_internal.h"

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

// The state that the threads of one group share.
struct LocalGroup {
  struct Offer {
    std::shared_ptr<Segment> segment;
    int takers;  // number of ranks that have not taken the segment yet
  };
  std::shared_ptr<Segment> control, arena;
  std::mutex mutex;
  std::map<std::uint64_t, Offer> offers;  // key: number of the allocation
};

// The live groups of this process, by the name that rank 0 puts in the store.
class Registry {
 public:
  std::string add(const std::shared_ptr<LocalGroup>& group) {
    const std::lock_guard lock(mutex_);
    std::erase_if(groups_, [](const auto& entry) { return entry.second.expired(); });
    const std::string name = fmt::format("{}/{}", getpid(), next_++);
    groups_[name] = group;
    return name;
  }
  // Returns null if the group does not exist (any more).
  std::shared_ptr<LocalGroup> find(const std::string& name) {
    const std::lock_guard lock(mutex_);
    const auto found = groups_.find(name);
    return found == groups_.end() ? nullptr : found->second.lock();
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<LocalGroup>> groups_;
  std::uint64_t next_ = 0;
};
Registry& registry() {
  static Registry instance;
  return instance;
}

class LocalMemory final : public SharedMemory {
 public:
  LocalMemory(std::shared_ptr<LocalGroup> group, int rank, int size)
      : group_(std::move(group)), rank_(rank), size_(size) {}

  std::shared_ptr<Segment> allocate(std::size_t block_bytes, Deadline&) override {
    const std::lock_guard lock(group_->mutex);
    const auto [entry, first] = group_->offers.try_emplace(allocations_++, LocalGroup::Offer{nullptr, size_});
    if (first) entry->second.segment = map_segment(block_bytes, static_cast<std::size_t>(size_));
    const std::shared_ptr<Segment> segment = entry->second.segment;
    if (--entry->second.takers == 0) group_->offers.erase(entry);
    if (!segment) throw DeviceError("local: another rank found no memory");
    return segment;
  }
  std::shared_ptr<Segment> arena() override { return group_->arena; }
  void reserve_arena(std::size_t, std::size_t) override {}  // the kernel allocates pages on first use
  void release_arena(std::size_t bytes) override {
    if (bytes > 0) madvise(group_->arena->block(rank_), bytes, MADV_DONTNEED);  // best effort
  }
  int cores() override { return usable_cores(); }
  std::string lost(int) override { return {}; }  // a thread that ends has left the group before

 private:
  std::shared_ptr<LocalGroup> group_;
  int rank_, size_;
  std::uint64_t allocations_ = 0;
};

// Rank 0 makes the group, and the others look it up.
std::shared_ptr<LocalGroup> join(const Rendezvous& place) {
  Store& store = *place.store;
  if (place.rank == 0) {
    const auto group = std::make_shared<LocalGroup>();
    group->arena = map_segment(kArenaBytes, static_cast<std::size_t>(place.size));
    group->control = map_segment((Control::bytes(place.size) + kPage - 1) / kPage * kPage, 1);
    store.set("local/group", registry().add(group));
    return group;
  }
  const std::string name = store.get("local/group");
  const std::string process = name.substr(0, name.find('/'));
  LOCKSTEP_CHECK(process == std::to_string(getpid()),
                 "local: rank 0 is in process {}, rank {} in {}; ranks of this backend are threads, use shm",
                 in_quotes(process), place.rank, getpid());
  std::shared_ptr<LocalGroup> group = registry().find(name);
  if (!group) throw CommError(fmt::format("local: rank 0 gave up before rank {} joined the group", place.rank));
  return group;
}

}  // namespace

std::unique_ptr<Backend> make_local(const InitOptions& options, const Rendezvous& place) {
  LOCKSTEP_CHECK(place.size <= kMaxLocalRanks, "local: {} ranks, at most {}", place.size, kMaxLocalRanks);
  const std::shared_ptr<LocalGroup> group = join(place);
  return std::make_unique<SharedGroup>(options, place, std::make_unique<LocalMemory>(group, place.rank, place.size),
                                       group->control);
}

}  // namespace lockstep::parallel
