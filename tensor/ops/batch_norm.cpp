// Batch normalisation: checks and allocation around the kernels of tensor/cpu/kernels_batch_norm.cpp.
#include "lockstep/tensor/ops/image_ops_internal.h"
#include "lockstep/tensor/ops/wrappers_internal.h"

namespace lockstep::raw {

namespace {

constexpr const char* kBatchNorm = "batch_norm";

void require_per_channel(const char* name, const Tensor& tensor, const Tensor& x) {
  if (!tensor.defined()) return;
  LOCKSTEP_CHECK(
      tensor.dim() == 1 && tensor.size(0) == x.size(1) && tensor.dtype() == x.dtype() && tensor.device() == x.device(),
      "batch_norm: {} is {}, expected ({}) with the dtype and device of x, which is {}", name, describe(tensor),
      x.size(1), describe(x));
}

void require_place(const char* name, const Tensor& place, const Tensor& x) {
  require_per_channel(name, place, x);
  LOCKSTEP_CHECK(!place.defined() || place.is_contiguous(), "batch_norm: {} is not contiguous: {}", name,
                 describe(place));
}

}  // namespace

BatchNormalized batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                           const Tensor& running_var, double momentum, double eps) {
  require_float(kBatchNorm, x);
  LOCKSTEP_CHECK(x.dim() >= 2, "batch_norm: x must be (batch, channels, ...), got {}", describe(x));
  require_per_channel("weight", weight, x);
  require_per_channel("bias", bias, x);
  require_place("running_mean", running_mean, x);
  require_place("running_var", running_var, x);
  const Rows rows = rows_along(x, 1);
  LOCKSTEP_CHECK(rows.outer * rows.inner != 1,
                 "batch_norm: a variance needs more than one value for each channel while training; x is {}",
                 describe(x));
  // A batch without elements has no statistics: the running ones do not change.
  if (x.numel() == 0) return {.out = empty_like(x), .statistics = zeros({2, rows.n}, x.options())};
  const Dense input(x), w(weight), b(bias);
  BatchNormalized result{.out = empty(x.shape(), x.options()), .statistics = empty({2, rows.n}, x.options())};
  kernels(x.device())
      .batch_norm(input.data(), w.data(), b.data(), result.out.raw_data(), result.statistics.raw_data(),
                  data_or_null(running_mean), data_or_null(running_var), rows, x.dtype(), momentum, eps);
  for (const Tensor* changed : {&running_mean, &running_var}) {
    if (changed->defined()) changed->impl().storage->bump_version();
  }
  return result;
}

Tensor batch_norm_backward(const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& statistics,
                           const Tensor& grad_weight, const Tensor& grad_bias) {
  require_same(kBatchNorm, grad, x);
  LOCKSTEP_CHECK(grad.shape() == x.shape(), "batch_norm: the gradient is {}, x is {}", describe(grad), describe(x));
  require_place("the output for weight's gradient", grad_weight, x);
  require_place("the output for bias's gradient", grad_bias, x);
  const Dense g(grad), input(x), w(weight);
  Tensor out = empty(x.shape(), x.options());
  if (out.numel() == 0) {
    for (const Tensor* sum : {&grad_weight, &grad_bias}) {
      if (sum->defined()) fill(*sum, 0);
    }
    return out;
  }
  kernels(x.device())
      .batch_norm_backward(g.data(), input.data(), w.data(), statistics.raw_data(), out.raw_data(),
                           data_or_null(grad_weight), data_or_null(grad_bias), rows_along(x, 1), x.dtype());
  return out;
}

}  // namespace lockstep::raw
