// Memory shared by all ranks of one host: one block for each rank, all of one size, in the order of ranks.
//
// Addresses are computed from the local geometry (block size, rank, offset) alone; no value read from a segment is
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
  std::shared_ptr<void> owner;  // unmaps or frees the memory
};

// A failure of this rank alone, which the other ranks have not noticed: for example a limit of its process.
struct LocalFailure : DeviceError {
  using DeviceError::DeviceError;
};

// Allocates segments for the ranks of one host, and detects lost ranks. Implemented by local and shm.
class SharedMemory {
 public:
  virtual ~SharedMemory() = default;
  // Returns a new segment, zeroed. All ranks call it together, with the same size. Throws DeviceError on all ranks if
  // there is not enough memory, LocalFailure on a rank that cannot use the memory.
  virtual std::shared_ptr<Segment> allocate(std::size_t block_bytes, Deadline& deadline) = 0;
  // Address space of kArenaBytes per rank, made with the group. Each rank reserves memory in its own block as needed.
  virtual std::shared_ptr<Segment> arena() = 0;
  // Reserves bytes [from, to) of this rank's block. Throws LocalFailure if there is not enough memory.
  virtual void reserve_arena(std::size_t from, std::size_t to) = 0;
  // Releases the first `bytes` of this rank's block.
  virtual void release_arena(std::size_t bytes) = 0;
  // Number of cores on which at least one rank may run (each rank may be bound to a core of its own).
  virtual int cores() = 0;
  // Why `rank` cannot arrive any more ("its process 123 has ended"); empty if it still may.
  virtual std::string lost(int rank) = 0;
};

}  // namespace lockstep::parallel
