// Memory that all ranks of one host see: a block of the same size for every rank, one after another.
//
// Addresses come from the local geometry (block size, rank, offset) alone; nothing that is read from a segment is ever
// used as an address, an index or a length.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "lockstep/parallel/rendezvous/deadline_internal.h"

namespace lockstep::parallel {

inline constexpr std::size_t kPage = 4096;
inline constexpr std::size_t kArenaBytes = 16 << 20;

struct Segment {
  Segment(std::byte* base, std::size_t block_bytes, std::shared_ptr<void> owner)
      : base(base), block_bytes(block_bytes), owner(std::move(owner)) {}
  std::byte* block(int rank) const { return base + static_cast<std::size_t>(rank) * block_bytes; }

  std::byte* base;
  std::size_t block_bytes;
  std::shared_ptr<void> owner;  // unmaps or frees
};

// How the ranks of one host get segments, and see that one of them is gone. Implemented by local and shm.
class SharedMemory {
 public:
  virtual ~SharedMemory() = default;
  // A new segment, zeroed. All ranks call it at the same time, with the same size. Throws DeviceError where there is
  // not enough memory, on all ranks.
  virtual std::shared_ptr<Segment> allocate(std::size_t block_bytes, Deadline& deadline) = 0;
  // Address space of kArenaBytes a rank, made together with the group; of its own block a rank reserves what it needs.
  virtual std::shared_ptr<Segment> arena() = 0;
  // Throws DeviceError where there is not enough memory.
  virtual void reserve_arena(std::size_t from, std::size_t to) = 0;
  // Gives that of its own block back.
  virtual void release_arena(std::size_t bytes) = 0;
  // Cores that the ranks may run on, all of them together: each may be bound to one of its own.
  virtual int cores() = 0;
  // Why `rank` cannot arrive any more ("its process 123 ended"); empty where it may.
  virtual std::string lost(int rank) = 0;
};

}  // namespace lockstep::parallel
