/// \file
/// Memory for the small objects that every operation allocates and frees: tensors' state, small storages, graph nodes.
/// Each thread keeps freed blocks in lists by size, so that the next allocation costs a few loads. A block may be freed
/// by another thread than the one that allocated it; it then joins the freeing thread's lists.
#pragma once

#include <cstddef>
#include <new>

#include "lockstep/base/error.h"

namespace lockstep {

namespace small_blocks {
/// Returns memory aligned as by malloc, null if there is none. Beyond 1 KiB this is malloc.
void* allocate(std::size_t bytes) noexcept;
void deallocate(void* block, std::size_t bytes) noexcept;  ///< `bytes` as passed to allocate
}  // namespace small_blocks

/// Base of classes whose objects are allocated there.
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
