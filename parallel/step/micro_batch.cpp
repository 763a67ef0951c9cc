#include "lockstep/parallel/step/micro_batch_internal.h"

#include <algorithm>
#include <iterator>

#include "lockstep/autograd/ops/functions.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/tensor/half_dtypes_internal.h"
#include "lockstep/tensor/ops/combine_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {

std::int64_t rows_of(const char* op, const Batch& batch) {
  LOCKSTEP_CHECK(!batch.empty(), "{}: the batch has no tensors", op);
  for (const Tensor& each : batch) {
    LOCKSTEP_CHECK(each.defined() && each.dim() > 0, "{}: {} has no rows to split", op, lockstep::describe(each));
    LOCKSTEP_CHECK(each.size(0) == batch[0].size(0), "{}: the batch has {} and {}, with different numbers of rows", op,
                   lockstep::describe(batch[0]), lockstep::describe(each));
  }
  return batch[0].size(0);
}

RowRange micro_batch_rows(std::int64_t rows, int s, int n) {
  const std::int64_t each = rows / n, larger = rows % n;
  return {s * each + std::min<std::int64_t>(s, larger), each + (s < larger ? 1 : 0)};
}

Batch narrow_rows(const Batch& batch, RowRange rows) {
  Batch micro_batch;
  micro_batch.reserve(batch.size());
  for (const Tensor& each : batch) micro_batch.push_back(raw::slice(each, 0, rows.first, rows.first + rows.count, 1));
  return micro_batch;
}

Tensor weighted_loss(const char* op, const Tensor& loss, std::int64_t weight, bool trains) {
  LOCKSTEP_CHECK(loss.defined() && loss.numel() == 1 && (loss.requires_grad() || !trains),
                 "{}: the loss function returned {}, expected one number{}", op,
                 loss.defined() ? lockstep::describe(loss) : "nothing",
                 trains ? " that depends on the parameters\nIt is called with a part of x and y, and calls the module: "
                          "[&](const Tensor& x, const Tensor& y) { return criterion(module(x), y); }"
                        : "");
  const Tensor detached = widened(loss.detach());
  return weight == 1 ? detached : raw::mul(detached, raw::full(loss.shape(), weight, detached.options()));
}

void weighted_backward(const Tensor& loss, std::int64_t weight) {
  if (weight == 1) return loss.backward();
  loss.backward(raw::full(loss.shape(), weight, loss.options()));
}

DType sum_dtype(DType dtype) { return is_half(dtype) ? kFloat32 : dtype; }

Tensor widened(const Tensor& t) { return t.defined() && is_half(t.dtype()) ? raw::to(t, kFloat32) : t; }

void set_rounded(const Tensor& leaf, const Tensor& sum) {
  leaf.set_grad(!sum.defined() || sum.dtype() == leaf.dtype() ? sum : raw::to(sum, leaf.dtype()));
}

Tensor add_up(Tensor a, const Tensor& b) {
  if (!a.defined()) return b;
  if (b.defined()) raw::add_(a, b);
  return a;
}

void scale_gradient(const Tensor& gradient, double factor) {
  if (factor == 1 || !gradient.defined()) return;
  const void* const in = gradient.raw_data();
  void* const out = gradient.raw_data();
  raw::combine({.inputs = {&in, 1}, .outputs = {&out, 1}, .dtype = gradient.dtype(), .scale = factor}, 0,
               gradient.numel(), gradient.device());
  gradient.impl().storage->bump_version();
}

Tensor reachable(const Tensor& t, Device device) {
  return t.device().is_cpu() && device.is_cpu() ? t : raw::to(t, device);
}

Tensor combine_losses(const std::vector<Tensor>& losses) {
  if (losses.size() == 1) return losses[0];
  const Tensor out = raw::empty(Shape(), losses[0].options());
  std::vector<Tensor> here;
  std::vector<const void*> inputs;
  for (const Tensor& loss : losses) inputs.push_back(here.emplace_back(reachable(loss, out.device())).raw_data());
  void* const target = out.raw_data();
  raw::combine({.inputs = inputs, .outputs = {&target, 1}, .dtype = out.dtype()}, 0, 1, out.device());
  return out;
}

Tensor combine_losses(const std::vector<Tensor>& losses, const StepScale& scale) {
  const Tensor out = losses.size() == 1 ? raw::clone(losses[0]) : combine_losses(losses);
  scale_gradient(out, scale.first);
  scale_gradient(out, scale.second);
  return out;
}

TrainedParameters::TrainedParameters(const nn::Module& module) : all_(module.parameters()) { changed(); }

bool TrainedParameters::is_current() const {
  std::size_t at = 0;
  for (const nn::Parameter& parameter : all_) {
    if (!parameter.master().requires_grad()) continue;
    if (at == trained_.size() || !(trained_[at++] == parameter)) return false;
  }
  return at == trained_.size();
}

bool TrainedParameters::changed() {
  if (is_current()) return false;
  trained_.clear();
  std::ranges::copy_if(all_, std::back_inserter(trained_), [](const auto& p) { return p.master().requires_grad(); });
  return true;
}

}  // namespace lockstep::parallel
