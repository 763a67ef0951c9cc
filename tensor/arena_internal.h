// The memory of one CUDA graph: what a recorded step allocates has to lie in the same place whenever it is replayed, so it
// comes from here, and stays until the graph and the last tensor in it have gone. Not installed.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <set>

#include "lockstep/tensor/accelerator_internal.h"

namespace lockstep {

class Arena final : public CaptureMemory {
 public:
  // `expected`: how much is likely to be needed at once; more is taken from the device as it is asked for.
  Arena(Accelerator& accelerator, int index, std::size_t expected);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void* allocate(std::size_t bytes) override;
  void deallocate(void* data) noexcept override;  // by any thread
  std::size_t bytes() const { return bytes_; }    // taken from the device

 private:
  using Blocks = std::map<std::byte*, std::size_t>;  // where a block starts, and its size
  void grow(std::size_t at_least);
  Blocks::iterator join_neighbours(Blocks::iterator block);

  Accelerator& accelerator_;
  int index_;
  std::mutex mutex_;
  Blocks free_, taken_;
  std::set<std::byte*> slabs_;  // what the device gave; blocks of different slabs are never joined
  std::size_t bytes_ = 0;
};

}  // namespace lockstep
