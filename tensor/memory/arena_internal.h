// The memory of one CUDA graph. Memory that a recorded step allocates must have the same address in every replay, so
// it comes from here and is kept until the graph and the last tensor in it are destroyed. Not installed.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <set>

#include "lockstep/tensor/memory/accelerator_internal.h"

namespace lockstep {

class Arena final : public CaptureMemory {
 public:
  // `expected`: the memory likely to be needed at the same time; more is allocated from the device on demand.
  Arena(Accelerator& accelerator, int index, std::size_t expected);
  ~Arena();

  void* allocate(std::size_t bytes) override;
  void deallocate(void* data) noexcept override;  // from any thread
  std::size_t bytes() const { return bytes_; }    // allocated from the device

 private:
  using Blocks = std::map<std::byte*, std::size_t>;  // a block's address and size
  void grow(std::size_t at_least);
  void join_neighbours(Blocks::iterator block);

  Accelerator& accelerator_;
  int index_;
  std::mutex mutex_;
  Blocks free_, taken_;
  std::set<std::byte*> slabs_;  // memory from the device; blocks of different slabs are never merged
  std::size_t bytes_ = 0;
};

}  // namespace lockstep
