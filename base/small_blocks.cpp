#include "lockstep/base/small_blocks.h"

#include <cstdint>
#include <cstdlib>

namespace lockstep::small_blocks {

namespace {

constexpr std::size_t kStep = 64, kLargest = 1024;  // sizes are multiples of kStep
constexpr std::size_t kKept = 16 * 1024;            // bytes that one list keeps at most
constexpr std::size_t kLists = kLargest / kStep + 1;

// Sanitizers that detect uses after free or leaks must see every allocation and free.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kKeepsBlocks = false;
#elif defined(__has_feature)
constexpr bool kKeepsBlocks = !__has_feature(address_sanitizer);
#else
constexpr bool kKeepsBlocks = true;
#endif

std::size_t list_of(std::size_t bytes) { return (bytes + kStep - 1) / kStep; }

struct Block {
  Block* next;
};

struct List {
  Block* first;
  std::uint32_t room;  // number of blocks the list can still hold
};

// No constructor and no destructor: usable until a thread's very end, when destructors of other thread-locals and of
// statics still free tensors. Lists have room from the thread's first deallocation to its end; list 0, for size 0,
// never has.
constinit thread_local List lists[kLists] = {};
constinit thread_local bool opened = false;

// Frees the blocks when the thread ends.
struct Closer {
  ~Closer() {
    for (List& list : lists) {
      while (Block* block = list.first) {
        list.first = block->next;
        std::free(block);
      }
      list.room = 0;
    }
  }
};

// Frees a block whose list has no room: the list is full or closed, or this is the thread's first free.
[[gnu::noinline]] void deallocate_without_room(void* block, std::size_t bytes) noexcept {
  if (opened || !kKeepsBlocks || bytes > kLargest) return std::free(block);
  opened = true;
  thread_local const Closer closer;
  for (std::size_t i = 1; i < kLists; ++i) lists[i].room = static_cast<std::uint32_t>(kKept / (i * kStep));
  deallocate(block, bytes);
}

}  // namespace

void* allocate(std::size_t bytes) noexcept {
  if (bytes > kLargest) return std::malloc(bytes);
  const std::size_t index = list_of(bytes);
  List& list = lists[index];
  Block* block = list.first;
  if (!block) return std::malloc(index * kStep);
  list.first = block->next;
  ++list.room;
  return block;
}

void deallocate(void* memory, std::size_t bytes) noexcept {
  List& list = lists[bytes <= kLargest ? list_of(bytes) : 0];
  if (list.room == 0) [[unlikely]]
    return deallocate_without_room(memory, bytes);
  --list.room;
  list.first = new (memory) Block{list.first};
}

}  // namespace lockstep::small_blocks
