// Regions of tensor parallelism: what the layers of one module that are cut share while it runs. Not installed.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/model_parallel/tensor_slices_internal.h"
#include "lockstep/parallel/step/shared_runner_internal.h"
#include "lockstep/tensor/random/slice_context_internal.h"

namespace lockstep::parallel {

// x for each of this rank's slices; their gradients are summed over all slices. `x` is the same on all ranks.
std::vector<Tensor> enter_slices(const std::shared_ptr<const TensorSlices>& slices, const Tensor& x,
                                 Phase phase = Phase::kActivationGradients);

// One call of a module with layers that are cut.
class TensorRegion final : public random::SliceContext {
 public:
  explicit TensorRegion(const std::shared_ptr<const TensorSlices>& slices);
  // The calling thread's innermost; null: no such module runs.
  static TensorRegion* current();

  // As enter_slices. Layers with the same input share the sum.
  const std::vector<Tensor>& enter(const Tensor& x);
  // From the layer whose outputs are cut, `columns` on this rank, to one whose inputs are. If they are repeated, several
  // slices share them.
  void open(const std::string& layer, std::int64_t own_columns, std::int64_t parts, bool repeated = false);
  void close() { columns.clear(); }

 private:
  std::shared_ptr<const TensorSlices> slices_;
  std::vector<std::pair<Tensor, std::vector<Tensor>>> entries_;
};

// Runs a module with layers that are cut inside a region of its own.
class RegionRunner final : public SharedRunner {
 public:
  explicit RegionRunner(std::shared_ptr<const TensorSlices> slices)
      : SharedRunner(Part::kModel, slices->group), slices_(std::move(slices)) {}
  Tensor run(const std::vector<Tensor>& inputs, Forward forward) const override;
  const std::shared_ptr<const TensorSlices>& slices() const { return slices_; }

 private:
  std::shared_ptr<const TensorSlices> slices_;
};

}  // namespace lockstep::parallel
