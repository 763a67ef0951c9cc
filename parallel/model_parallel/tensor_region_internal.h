// Regions of tensor parallelism: what the layers of one module that are cut share while it runs. Not installed.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/model_parallel/tensor_slices_internal.h"
#include "lockstep/parallel/step/shared_runner_internal.h"
#include "lockstep/tensor/random/slice_context_internal.h"

namespace lockstep::parallel {

// x for each of this rank's slices; their gradients are summed over all slices. `x` is the same on all ranks. The graph
// owns `kept`.
std::vector<Tensor> copies_for_slices(const std::shared_ptr<const TensorSlices>& slices, const Tensor& x,
                                      const std::shared_ptr<const void>& kept = nullptr);
// The same at the beginning of a region: with sequence parallelism x has this rank's positions, and the results those of
// all ranks.
std::vector<Tensor> enter_slices(const std::shared_ptr<const TensorSlices>& slices, const Tensor& x);
// The sum of one term for each slice, at the end of a region: with sequence parallelism this rank's positions of it. Then
// `bias`, unless it is undefined, is added once.
Tensor leave_slices(const std::shared_ptr<const TensorSlices>& slices, const std::vector<Tensor>& terms,
                    const Tensor& bias);

// The results of a module's `forward` for each input, one for each slice, with its parameters as copies_for_slices.
std::vector<Tensor> run_for_slices(const std::shared_ptr<const TensorSlices>& slices,
                                   const std::vector<nn::Parameter>& parameters, const std::vector<nn::Buffer>& buffers,
                                   const std::vector<Tensor>& inputs, nn::ModuleRunner::Forward forward);

// One call of a module with layers that are cut.
class TensorRegion final : public random::SliceContext {
 public:
  explicit TensorRegion(const std::shared_ptr<const TensorSlices>& slices);
  // The calling thread's innermost; null: no such module runs.
  static TensorRegion* current();
  std::shared_ptr<random::SliceContext> fresh() const override;

  // As enter_slices. Layers with the same input share the sum.
  const std::vector<Tensor>& enter(const Tensor& x);
  // From the layer whose outputs are cut to one whose inputs are.
  void open(const std::string& layer, const Columns& own);
  void close() { columns.clear(); }

 private:
  std::shared_ptr<const TensorSlices> slices_;
  TensorRegion* outer_;  // of a module around this one
  friend void begin_pieces(const TensorSlices& slices, std::int64_t time);
  struct Entry {
    Tensor input;
    std::uint32_t version;  // of the input
    bool has_history;
    std::vector<Tensor> entered;
  };
  std::vector<Entry> entries_;
};

// With sequence parallelism: from now on, activations have this rank's positions of `time`. Throws InvalidArgument if these
// cannot be cut into pieces.
void begin_pieces(const TensorSlices& slices, std::int64_t time);

// Throws InvalidArgument unless x has so many.
void require_positions(const Tensor& x, std::int64_t positions);

// The parameters and buffers of which each rank has the whole.
std::vector<nn::TensorHandle> whole_tensors(const nn::Module& module);

// Runs a module with layers that are cut inside a region of its own. The result of the whole model has all positions.
class RegionRunner final : public SharedRunner {
 public:
  RegionRunner(std::shared_ptr<const TensorSlices> slices, bool is_model, std::vector<nn::TensorHandle> shared_values)
      : SharedRunner(Part::kModel, slices->group, slices->mesh), slices_(std::move(slices)), is_model_(is_model),
        shared_values_(std::move(shared_values)) {}
  std::span<const nn::TensorHandle> shared_values() const override { return shared_values_; }
  Tensor run(const std::vector<Tensor>& inputs, Forward forward) const override;
  const std::shared_ptr<const TensorSlices>& slices() const { return slices_; }

 private:
  std::shared_ptr<const TensorSlices> slices_;
  bool is_model_;
  std::vector<nn::TensorHandle> shared_values_;
};

}  // namespace lockstep::parallel
