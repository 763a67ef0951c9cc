// The small parts of a step over micro-batches: rows, losses, scales. Not installed.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/nn/module.h"
#include "lockstep/parallel/replicated/step.h"

namespace lockstep::parallel {

inline std::int64_t bytes_of(const Tensor& t) { return t.numel() * static_cast<std::int64_t>(item_size(t.dtype())); }

// Rows of every tensor of the batch; throws InvalidArgument, naming `op`, where they differ.
std::int64_t rows_of(const char* op, const Batch& batch);

// Rows [first, first + count) of micro-batch s of n: sizes differ by at most one, larger ones first.
struct RowRange {
  std::int64_t first, count;
};
RowRange micro_batch_rows(std::int64_t rows, int s, int n);
// Views without history: several threads may run backward from them.
Batch narrow_rows(const Batch& batch, RowRange rows);

// A micro-batch's loss times `weight`, detached, in the dtype of sums. Throws InvalidArgument, naming `op`, unless
// `loss` is one number that depends on the parameters.
Tensor weighted_loss(const char* op, const Tensor& loss, std::int64_t weight);
// Backward from a micro-batch's loss, times `weight`.
void weighted_backward(const Tensor& loss, std::int64_t weight);

// What a sum over micro-batches is multiplied with: by `first` once, as every mode does (1 / micro-batches, or with
// weights 1 / rows of the step), and by `second` where some micro-batches had no rows: the mean is over those that
// ran.
struct StepScale {
  StepScale(int micro_batches, int running)
      : first(1.0 / micro_batches), second(static_cast<double>(micro_batches) / running) {}
  explicit StepScale(std::int64_t rows) : first(1.0 / static_cast<double>(rows)), second(1) {}
  double first, second;
};

// Gradients and losses of f16 and bf16, which are formats for storage, are added up in f32 and rounded once:
// `sum_dtype` is the dtype of their sums, `widened` the tensor in it (itself where it is already), `set_rounded`
// rounds a sum to the leaf's gradient.
DType sum_dtype(DType dtype);
Tensor widened(const Tensor& t);
void set_rounded(const Tensor& leaf, const Tensor& sum);
// a + b in a's place; an undefined one counts for nothing.
Tensor add_up(Tensor a, const Tensor& b);
// gradient *= factor, in place; nothing where it is undefined.
void scale_gradient(const Tensor& gradient, double factor);
// Itself where kernels of `device` can read it, as all CPU devices have one memory; else a copy there.
Tensor reachable(const Tensor& t, Device device);
// The canonical sum of 0-d losses, scaled (or not).
Tensor combine_losses(const std::vector<Tensor>& losses);
Tensor combine_losses(const std::vector<Tensor>& losses, const StepScale& scale);

// The parameters of a module that require grad. Users freeze and unfreeze them between steps.
class TrainedParameters {
 public:
  explicit TrainedParameters(const nn::Module& module);
  const std::vector<nn::Parameter>& list() const { return trained_; }
  // Looks again; true where the list is another one now.
  bool changed();

 private:
  std::vector<nn::Parameter> all_, trained_;
};

}  // namespace lockstep::parallel
