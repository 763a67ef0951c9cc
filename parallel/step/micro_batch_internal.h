// Functions for a step over micro-batches: samples, losses, scales. Not installed.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/nn/module.h"
#include "lockstep/parallel/step/step.h"

namespace lockstep::parallel {

inline std::int64_t bytes_of(const Tensor& t) { return t.numel() * static_cast<std::int64_t>(item_size(t.dtype())); }

// Returns the batch's number of samples. Throws InvalidArgument, naming `op`, if its tensors differ in it.
std::int64_t rows_of(const char* op, const Batch& batch);

// Samples [first, first + count) of micro-batch s of n. Sizes differ by at most one, larger micro-batches first.
struct RowRange {
  std::int64_t first, count;
};
RowRange micro_batch_rows(std::int64_t rows, int s, int n);
// Returns views without history, as several threads may run backward from them.
Batch narrow_rows(const Batch& batch, RowRange rows);

// A micro-batch's loss times `weight`, detached, in the dtype of sums. Throws InvalidArgument, naming `op`, unless
// `loss` is one number and, if it `trains`, depends on the parameters.
Tensor weighted_loss(const char* op, const Tensor& loss, std::int64_t weight, bool trains);
// Backward from a micro-batch's loss, times `weight`.
void weighted_backward(const Tensor& loss, std::int64_t weight);

// The factors of a sum over micro-batches: all modes multiply by `first` (1 / micro-batches, or with weights 1 /
// samples of the step), then by `second`, which is not 1 if some micro-batches had no samples: the mean is over those
// that ran.
struct StepScale {
  StepScale(int micro_batches, int running)
      : first(1.0 / micro_batches), second(static_cast<double>(micro_batches) / running) {}
  explicit StepScale(std::int64_t rows) : first(1.0 / static_cast<double>(rows)), second(1) {}
  double first, second;
};

// Gradients and losses in f16 and bf16 are summed in f32 and rounded once. `sum_dtype` returns the
// dtype of sums, `widened` the tensor in that dtype (itself if it has it), and `set_rounded` sets the leaf's gradient
// to a rounded sum.
DType sum_dtype(DType dtype);
Tensor widened(const Tensor& t);
void set_rounded(const Tensor& leaf, const Tensor& sum);
// Returns a + b, in a's memory. If one is undefined, returns the other.
Tensor add_up(Tensor a, const Tensor& b);
// gradient *= factor, in place. Does nothing if it is undefined.
void scale_gradient(const Tensor& gradient, double factor);
// Returns `t` itself if kernels of `device` can read it (all CPU devices share memory), else a copy on `device`.
Tensor reachable(const Tensor& t, Device device);
// The canonical sum of 0-d losses, or the only one itself; with `scale` a new tensor, the sum times `scale`.
Tensor combine_losses(const std::vector<Tensor>& losses);
Tensor combine_losses(const std::vector<Tensor>& losses, const StepScale& scale);

// The parameters of a module that require grad. Programs freeze and unfreeze parameters between steps.
class TrainedParameters {
 public:
  explicit TrainedParameters(const nn::Module& module);
  const std::vector<nn::Parameter>& list() const { return trained_; }
  bool is_current() const;
  // Updates the list. Returns true if it has changed.
  bool changed();

 private:
  std::vector<nn::Parameter> all_, trained_;
};

}  // namespace lockstep::parallel
