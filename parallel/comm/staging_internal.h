// Copies tensors to a device that the backend supports: from a GPU to the host for shm, local, gloo, mpi and ucc, from the
// host to the GPU for nccl. Not installed.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep::parallel {

class Staging {
 public:
  // Allocates memory on `device` that mirrors `there`, communication memory in which its elements are exchanged.
  Ref<Storage> mirror(Ref<Storage> there, Device device);
  // Returns the staging tensor on `device` for a contiguous `tensor`. Nothing is copied. Host memory is pinned.
  Tensor place_for(const Tensor& tensor, Device device);
  // Frees the memory kept for later operations.
  void release() { blocks_.clear(); }

 private:
  struct Pair;
  Ref<Storage> block(std::size_t bytes, Device gpu);

  std::vector<std::weak_ptr<const Pair>> pairs_;
  std::vector<Ref<Storage>> blocks_;  // pinned; a block is free if this is the only reference
};

}  // namespace lockstep::parallel
