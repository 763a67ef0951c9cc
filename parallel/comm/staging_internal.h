// Tensors on a device that a backend does not work on, on their way to one that it does: a GPU's to the host for shm, local,
// gloo and mpi, the host's to the GPU for nccl. Not installed.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep::parallel {

class Staging {
 public:
  // Memory on `device` of the size of `there`, communication memory of the backend, in which its elements are exchanged.
  Ref<Storage> mirror(Ref<Storage> there, Device device);
  // Where the elements of `tensor`, which is contiguous, are exchanged on `device`; not copied yet. On the host it is pinned.
  Tensor place_for(const Tensor& tensor, Device device);
  // Gives back what is kept for the next operations.
  void release() { blocks_.clear(); }

 private:
  struct Pair;
  Ref<Storage> block(std::size_t bytes, Device gpu);

  std::vector<std::weak_ptr<const Pair>> pairs_;
  std::vector<Ref<Storage>> blocks_;  // pinned; those that nobody else holds are free
};

}  // namespace lockstep::parallel
