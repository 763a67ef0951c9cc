// Memory of devices, which the host cannot access, pinned memory of the host, and copies.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "tests/cuda/simulator/runtime_state.h"

struct CUmemPoolHandle_st {
  int device;
};

namespace simulator {
namespace {

constexpr std::size_t kRange = std::size_t{1} << 36;  // address space of a device, in bytes
constexpr std::size_t kStep = 512;                    // CUDA's alignment
constexpr std::size_t kCanary = 64;                   // bytes behind each block that must not be written
constexpr unsigned char kFresh = 0xff;                // fills memory that has not been written: NaN
constexpr unsigned char kGuard = 0xa5;
constexpr std::size_t kSpoiled = 1 << 16;  // bytes
constexpr std::size_t kPage = 4096;
constexpr std::size_t kWord = 16;  // largest load of a kernel; with fences, the alignment of blocks

struct Block {
  std::size_t bytes;  // as requested
  bool is_pooled;     // from cudaMallocAsync
};

struct Memory {
  unsigned char* start = nullptr;
  std::size_t used = 0;  // of the range
  int opened = 0;
  std::map<unsigned char*, Block> blocks = {};                       // allocated
  using Rooms = std::map<std::size_t, std::vector<unsigned char*>>;  // by size in bytes
  Rooms cached = {};                                                 // in the pool
  Rooms vacant = {};
  std::vector<std::pair<unsigned char*, std::size_t>> fenced = {};  // with fences: all rooms without their last page
  std::size_t live = 0, live_pooled = 0, kept = 0;                  // rooms in bytes; `kept`: cached
  CUmemPoolHandle_st pool = {};
};

Memory& memory_of(int device) {
  static auto* const instance = new std::array<Memory, 16>;
  Memory& memory = (*instance)[static_cast<std::size_t>(device)];
  if (!memory.start) {
    void* const range = mmap(nullptr, kRange, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) give_up("no addresses for a device's memory");
    memory.start = static_cast<unsigned char*>(range);
    memory.pool.device = device;
  }
  return memory;
}

std::size_t round_up(std::size_t bytes, std::size_t step) { return (bytes + step - 1) / step * step; }

// Returns the size of a block's room. With fences the block ends at the last page of the room, which stays
// inaccessible.
std::size_t room_for(std::size_t bytes) {
  if (settings().fences) return round_up(std::max<std::size_t>(bytes, 1), kPage) + kPage;
  return round_up(std::max<std::size_t>(bytes, 1) + kCanary, kStep);
}
// Returns the offset of a block in its room.
std::size_t offset_of(std::size_t bytes) {
  return settings().fences ? room_for(bytes) - kPage - round_up(bytes, kWord) : 0;
}

void protect(void* start, std::size_t bytes, int how) {
  if (bytes > 0 && mprotect(start, bytes, how) != 0) give_up("mprotect failed");
}
void protect(const Memory& memory, int how) {
  if (!settings().fences) return protect(memory.start, round_up(memory.used, kPage), how);
  for (const auto& [start, bytes] : memory.fenced) protect(start, bytes, how);
}

// Fills memory that has not been written or was freed. In a large block only both ends: untouched pages cost nothing.
void spoil(unsigned char* data, std::size_t bytes) {
  const std::size_t end = std::min(bytes, kSpoiled);
  std::memset(data, kFresh, end);
  std::memset(data + bytes - end, kFresh, end);
}
void refresh(unsigned char* data, std::size_t bytes) {
  spoil(data, bytes);
  if (!settings().fences) std::memset(data + bytes, kGuard, kCanary);
}

void check_canary(const unsigned char* data, std::size_t bytes) {
  if (settings().fences) return;
  if (std::any_of(data + bytes, data + bytes + kCanary, [](unsigned char byte) { return byte != kGuard; }))
    give_up("bytes were written behind a block of " + std::to_string(bytes) + " bytes");
}

unsigned char* take_from(Memory::Rooms& rooms, std::size_t room) {
  std::vector<unsigned char*>& fitting = rooms[room];
  if (fitting.empty()) return nullptr;
  unsigned char* const start = fitting.back();
  fitting.pop_back();
  return start;
}

unsigned char* make_room(Memory& memory, std::size_t room) {
  if (memory.used + room > kRange) give_up("a device's address space is used up");
  unsigned char* const start = memory.start + memory.used;
  memory.used += room;
  if (settings().fences) memory.fenced.emplace_back(start, room - kPage);
  if (memory.opened > 0) protect(memory, PROT_READ | PROT_WRITE);
  return start;
}

// Returns null if there is no room.
unsigned char* take(int device, std::size_t bytes, bool is_pooled) {
  Memory& memory = memory_of(device);
  const std::size_t room = room_for(bytes);
  unsigned char* start = is_pooled ? take_from(memory.cached, room) : nullptr;
  if (start) {
    memory.kept -= room;
  } else {
    if (memory.live + memory.kept + room > settings().memory) return nullptr;
    start = take_from(memory.vacant, room);
  }
  if (!start) start = make_room(memory, room);
  unsigned char* const data = start + offset_of(bytes);
  memory.blocks[data] = {bytes, is_pooled};
  memory.live += room;
  if (is_pooled) memory.live_pooled += room;
  return data;
}

std::optional<Block> give_back(int device, unsigned char* data) {
  Memory& memory = memory_of(device);
  const auto found = memory.blocks.find(data);
  if (found == memory.blocks.end()) return {};
  const Block block = found->second;
  const std::size_t room = room_for(block.bytes);
  unsigned char* const start = data - offset_of(block.bytes);
  memory.blocks.erase(found);
  memory.live -= room;
  if (block.is_pooled) {
    memory.live_pooled -= room;
    memory.cached[room].push_back(start);
    memory.kept += room;
  } else {
    memory.vacant[room].push_back(start);
  }
  return block;
}

// Returns the device that owns this memory, or -1.
int owner(const void* data) {
  const auto* const at = static_cast<const unsigned char*>(data);
  for (int device = 0; device < settings().devices; ++device) {
    const Memory& memory = memory_of(device);
    if (at >= memory.start && at < memory.start + kRange) return device;
  }
  return -1;
}

// Pinned memory of the host: its start and size, and whether the simulator allocated it.
struct Pinned {
  std::size_t bytes;
  bool is_own;
};
std::map<const unsigned char*, Pinned>& pinned() {
  static auto* const instance = new std::map<const unsigned char*, Pinned>;
  return *instance;
}
bool is_pinned(const void* data) {
  const auto* const at = static_cast<const unsigned char*>(data);
  auto next = pinned().upper_bound(at);
  if (next == pinned().begin()) return false;
  --next;
  return at < next->first + next->second.bytes;
}

// True unless `data` lies on a device but outside of its allocated memory.
bool may_copy(const void* data, std::size_t bytes) { return owner(data) < 0 || is_device_memory(data, bytes); }

// Returns the copy as work that the device does later.
Work copy_work(void* to, const void* from, std::size_t bytes) {
  return [=] {
    std::optional<Open> target, source;
    if (owner(to) >= 0) target.emplace(owner(to));
    if (owner(from) >= 0) source.emplace(owner(from));
    std::memcpy(to, from, bytes);
    return true;
  };
}

}  // namespace

Open::Open(int device) : device_(device) {
  Memory& memory = memory_of(device);
  if (memory.opened++ == 0) protect(memory, PROT_READ | PROT_WRITE);
}
Open::~Open() {
  Memory& memory = memory_of(device_);
  if (--memory.opened == 0) protect(memory, PROT_NONE);
}

bool is_device_memory(const void* data, std::size_t bytes) {
  const int device = owner(data);
  if (device < 0) return false;
  const Memory& memory = memory_of(device);
  auto* const at = static_cast<unsigned char*>(const_cast<void*>(data));
  auto next = memory.blocks.upper_bound(at);
  if (next == memory.blocks.begin()) return false;
  --next;
  return at + bytes <= next->first + next->second.bytes;
}

void* allocate_on(int device, std::size_t bytes) {
  unsigned char* const data = take(device, bytes, false);
  if (!data) return nullptr;
  const Open open(device);
  refresh(data, bytes);
  return data;
}

void free_on_device(void* data) {
  const int device = owner(data);
  if (device < 0) give_up("a freed address is not memory of a device");
  const std::optional<Block> block = give_back(device, static_cast<unsigned char*>(data));
  if (!block) give_up("a freed address is not allocated");
  const Open open(device);
  check_canary(static_cast<unsigned char*>(data), block->bytes);
  spoil(static_cast<unsigned char*>(data), block->bytes);
}

}  // namespace simulator

using simulator::current_device;
using simulator::memory_of;

// --- the pool -------------------------------------------------------------------------------------------------------

// As in CUDA, a block that was freed earlier on the same stream is allocated again at once; its bytes are overwritten
// when the stream reaches that point.
cudaError_t cudaMallocAsync(void** data, std::size_t bytes, cudaStream_t stream) {
  ENTER();
  if (simulator::is_captured(stream))
    return answer(cudaErrorNotSupported);  // CUDA supports it; Lockstep provides the memory of graphs itself
  unsigned char* const block = simulator::take(simulator::device_of(stream), bytes, true);
  if (!block) return answer(cudaErrorMemoryAllocation);
  *data = block;
  return answer(simulator::enqueue(stream, [block, bytes] {
    simulator::refresh(block, bytes);
    return true;
  }));
}

cudaError_t cudaFreeAsync(void* data, cudaStream_t stream) {
  ENTER();
  if (simulator::is_captured(stream)) return answer(cudaErrorNotSupported);
  auto* const block = static_cast<unsigned char*>(data);
  const int device = simulator::owner(data);
  if (device < 0) return answer(cudaErrorInvalidValue);
  const auto freed = simulator::give_back(device, block);
  if (!freed || !freed->is_pooled) return answer(cudaErrorInvalidValue);
  return answer(simulator::enqueue(stream, [block, device, bytes = freed->bytes] {
    const simulator::Open open(device);
    simulator::check_canary(block, bytes);
    simulator::spoil(block, bytes);
    return true;
  }));
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  ENTER();
  *pool = &memory_of(device).pool;
  return answer(cudaSuccess);
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr attribute, void*) {
  ENTER();
  return answer(attribute == cudaMemPoolAttrReleaseThreshold ? cudaSuccess : cudaErrorNotSupported);
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  ENTER();
  const simulator::Memory& memory = memory_of(pool->device);
  std::uint64_t bytes = memory.live_pooled;
  if (attribute == cudaMemPoolAttrReservedMemCurrent) {
    bytes += memory.kept;
  } else if (attribute != cudaMemPoolAttrUsedMemCurrent) {
    return answer(cudaErrorNotSupported);
  }
  std::memcpy(value, &bytes, sizeof(bytes));
  return answer(cudaSuccess);
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* access, std::size_t count) {
  ENTER();
  for (std::size_t i = 0; i < count; ++i) {
    if (access[i].location.type != cudaMemLocationTypeDevice || access[i].location.id == pool->device ||
        access[i].location.id >= simulator::settings().devices)
      return answer(cudaErrorInvalidValue);
  }
  return answer(cudaSuccess);
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, std::size_t) {
  ENTER();
  simulator::Memory& memory = memory_of(pool->device);
  for (auto& [room, blocks] : memory.cached) {
    std::vector<unsigned char*>& vacant = memory.vacant[room];
    vacant.insert(vacant.end(), blocks.begin(), blocks.end());
  }
  memory.cached.clear();
  memory.kept = 0;
  return answer(cudaSuccess);
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  ENTER();
  const simulator::Memory& memory = memory_of(current_device());
  *total = simulator::settings().memory;
  *free = *total - memory.live - memory.kept;
  return answer(cudaSuccess);
}

// --- memory apart from the pool -------------------------------------------------------------------------------------

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  ENTER();
  if (const cudaError_t disturbs = simulator::disturb_captures(); disturbs != cudaSuccess) return answer(disturbs);
  *data = simulator::allocate_on(current_device(), bytes);
  return answer(*data ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaFree(void* data) {
  ENTER();
  if (const cudaError_t disturbs = simulator::disturb_captures(); disturbs != cudaSuccess) return answer(disturbs);
  if (!data) return answer(cudaSuccess);
  if (!simulator::is_device_memory(data, 0)) return answer(cudaErrorInvalidValue);
  simulator::wait_for_device(simulator::owner(data));
  simulator::free_on_device(data);
  return answer(cudaSuccess);
}

cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned) {
  ENTER();
  if (const cudaError_t disturbs = simulator::disturb_captures(); disturbs != cudaSuccess) return answer(disturbs);
  *data = ::operator new(bytes);
  simulator::pinned()[static_cast<unsigned char*>(*data)] = {bytes, true};
  return answer(cudaSuccess);
}

cudaError_t cudaHostRegister(void* data, std::size_t bytes, unsigned) {
  ENTER();
  if (bytes == 0) return answer(cudaErrorInvalidValue);
  if (simulator::is_pinned(data)) return answer(cudaErrorHostMemoryAlreadyRegistered);
  simulator::pinned()[static_cast<unsigned char*>(data)] = {bytes, false};
  return answer(cudaSuccess);
}

cudaError_t cudaHostUnregister(void* data) {
  ENTER();
  return answer(simulator::pinned().erase(static_cast<unsigned char*>(data)) == 1 ? cudaSuccess
                                                                                  : cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  ENTER();
  *attributes = {};
  const int device = simulator::owner(data);
  attributes->device = device;
  attributes->type = device >= 0                  ? cudaMemoryTypeDevice
                     : simulator::is_pinned(data) ? cudaMemoryTypeHost
                                                  : cudaMemoryTypeUnregistered;
  return answer(cudaSuccess);
}

// --- copies ---------------------------------------------------------------------------------------------------------

// Pageable memory is copied before the call returns; other memory is read and written when the stream reaches the
// copy.
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  ENTER();
  if (kind != cudaMemcpyDefault && kind != cudaMemcpyDeviceToHost) return answer(cudaErrorNotSupported);
  if (!simulator::may_copy(to, bytes) || !simulator::may_copy(from, bytes)) return answer(cudaErrorInvalidValue);
  if (kind == cudaMemcpyDeviceToHost && (simulator::owner(to) >= 0 || simulator::owner(from) < 0))
    return answer(cudaErrorInvalidValue);
  if (simulator::owner(from) >= 0 || simulator::is_pinned(from))
    return answer(simulator::enqueue(stream, simulator::copy_work(to, from, bytes)));
  const auto* const first = static_cast<const unsigned char*>(from);
  const auto aside = std::make_shared<std::vector<unsigned char>>(first, first + bytes);
  return answer(simulator::enqueue(stream, [=] { return simulator::copy_work(to, aside->data(), bytes)(); }));
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, std::size_t bytes,
                                cudaStream_t stream) {
  ENTER();
  if (simulator::owner(to) != to_device || simulator::owner(from) != from_device ||
      !simulator::is_device_memory(to, bytes) || !simulator::is_device_memory(from, bytes))
    return answer(cudaErrorInvalidValue);
  return answer(simulator::enqueue(stream, simulator::copy_work(to, from, bytes)));
}
