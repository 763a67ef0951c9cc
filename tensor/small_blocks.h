// Memory for the small objects that every operation makes and drops again: tensors' state, small storages, nodes of the
// graph. Each thread keeps what it freed in lists by size, so that the next operation takes from there at the cost of a
// few loads. A block may be freed by another thread than the one that made it; it then joins the other's lists.
#pragma once

#include <cstddef>
#include <new>

#include "lockstep/tensor/error.h"

namespace lockstep {

namespace small_blocks {
// Memory aligned as malloc aligns it, null where there is none. Beyond 1 KiB this is malloc.
void* allocate(std::size_t bytes) noexcept;
void deallocate(void* block, std::size_t bytes) noexcept;  // `bytes` as at allocate
}  // namespace small_blocks

// Base of classes whose objects come from there.
struct SmallObject {
  static void* operator new(std::size_t bytes) {
    void* block = small_blocks::allocate(bytes);
    if (!block) [[unlikely]]
      throw std::bad_alloc();
    return block;
  }
  static void operator delete(void* block, std::size_t bytes) noexcept { small_blocks::deallocate(block, bytes); }
};

}  // namespace lockstep
