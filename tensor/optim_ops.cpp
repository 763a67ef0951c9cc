#include "lockstep/tensor/optim_ops.h"

#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/kernels_internal.h"
#include "lockstep/tensor/ops.h"

namespace lockstep::inline LOCKSTEP_ABI::raw {
namespace {

bool fits(const TensorImpl& a, const TensorImpl& b) {
  return a.shape == b.shape && a.dtype == b.dtype && a.storage->device() == b.storage->device();
}

void check(const char* op, const char* role, const Tensor& parameter, const Tensor& other) {
  LOCKSTEP_CHECK(fits(parameter.impl(), other.impl()), "{}: parameter is {}, {} is {}", op, describe(parameter), role,
                 describe(other));
}

void check_state(const char* op, const char* role, const Tensor& parameter, const Tensor& state) {
  check(op, role, parameter, state);
  LOCKSTEP_CHECK(state.is_contiguous(), "{}: {} is not contiguous: {}", op, role, describe(state));
}

void check_dtype(const char* op, const Tensor& parameter) {
  const DType dtype = parameter.impl().dtype;
  LOCKSTEP_CHECK(dtype == kFloat32 || dtype == kFloat64, "{}: parameter is {}, expected f32 or f64", op,
                 describe(parameter));
}

// Calls step(parameter, grad) with contiguous tensors and puts the result back where the parameter is not.
template <class Step>
void in_place(const Tensor& parameter, const Tensor& grad, Step step) {
  if (parameter.is_contiguous() && grad.is_contiguous()) [[likely]] {
    step(parameter, grad);
  } else {
    const Tensor dense = contiguous(parameter);
    step(dense, contiguous(grad));
    if (!parameter.is_contiguous()) copy(dense, parameter);
  }
  parameter.impl().storage->bump_version();
}

}  // namespace

void sgd_step(const Tensor& parameter, const Tensor& grad, const Tensor& buffer, const SgdStep& step) {
  check_dtype("sgd_step", parameter);
  check("sgd_step", "the gradient", parameter, grad);
  const bool uses_buffer = step.momentum != 0;
  if (uses_buffer) check_state("sgd_step", "the momentum buffer", parameter, buffer);
  in_place(parameter, grad, [&](const Tensor& p, const Tensor& g) {
    kernels(p.device())
        .sgd_step(p.raw_data(), g.raw_data(), uses_buffer ? buffer.raw_data() : nullptr, p.numel(), p.dtype(), step);
  });
}

void adam_step(const Tensor& parameter, const Tensor& grad, const Tensor& mean, const Tensor& square,
               const AdamStep& step) {
  check_dtype("adam_step", parameter);
  check("adam_step", "the gradient", parameter, grad);
  check_state("adam_step", "exp_avg", parameter, mean);
  check_state("adam_step", "exp_avg_sq", parameter, square);
  in_place(parameter, grad, [&](const Tensor& p, const Tensor& g) {
    kernels(p.device())
        .adam_step(p.raw_data(), g.raw_data(), mean.raw_data(), square.raw_data(), p.numel(), p.dtype(), step);
  });
}

}  // namespace lockstep::inline LOCKSTEP_ABI::raw
