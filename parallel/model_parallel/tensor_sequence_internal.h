// Sequence parallelism: modules outside of the regions that work on this rank's positions. Not installed.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/parallel/model_parallel/tensor_region_internal.h"

namespace lockstep::parallel {

// Runs a module on each of this rank's pieces of the sequence. The gradients of its parameters are summed over all pieces
// in canonical order before they enter the sum over micro-batches. An Embedding gets the indices of all positions.
class PiecesRunner final : public SharedRunner {
 public:
  PiecesRunner(std::shared_ptr<const TensorSlices> slices, const nn::Module& module);
  Tensor run(const std::vector<Tensor>& inputs, Forward forward) const override;

 private:
  std::shared_ptr<const TensorSlices> slices_;
  std::vector<nn::Parameter> parameters_;
  std::vector<nn::Buffer> buffers_;
  bool takes_indices_;
};

}  // namespace lockstep::parallel
