// Linear layers that are cut: runners that compute this rank's slices. Not installed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/nn/layers/layers.h"
#include "lockstep/parallel/model_parallel/styles.h"
#include "lockstep/parallel/model_parallel/tensor_region_internal.h"

namespace lockstep::parallel {

// The outputs of this rank's slices side by side: part 0 of all slices, then part 1, and so on. Gradients of slices are
// contiguous.
Tensor join_columns(const std::vector<Tensor>& of_slices, std::int64_t parts);

// y = x W^T + b with W's rows, the outputs, cut. One product for each slice.
class ColwiseRunner final : public SharedRunner {
 public:
  // This rank's distinct slices of the weight and the bias, which may have none.
  ColwiseRunner(std::shared_ptr<const TensorSlices> slices, const std::string& path, const ColwiseParallel& style,
                std::vector<nn::Parameter> weights, std::vector<nn::Parameter> biases);
  Tensor run(const std::vector<Tensor>& inputs, Forward forward) const override;
  bool opens_region() const override { return !style_.gather_output; }

 private:
  std::shared_ptr<const TensorSlices> slices_;
  std::string path_;
  ColwiseParallel style_;
  std::vector<nn::Parameter> weights_, biases_;
};

// y = x W^T + b with W's columns, the inputs, cut: the sum over all slices, then the bias once.
class RowwiseRunner final : public SharedRunner {
 public:
  RowwiseRunner(std::shared_ptr<const TensorSlices> slices, std::vector<nn::Parameter> weights,
                const nn::Parameter& bias);
  Tensor run(const std::vector<Tensor>& inputs, Forward forward) const override;
  bool closes_region() const override { return true; }

 private:
  std::shared_ptr<const TensorSlices> slices_;
  std::vector<nn::Parameter> weights_;
  nn::Parameter bias_;  // whole on every rank; undefined without one
};

}  // namespace lockstep::parallel
