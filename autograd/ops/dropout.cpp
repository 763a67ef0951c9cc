// Dropout, whose backward draws the mask again.
#include "lockstep/autograd/ops/operations_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/tensor/half_dtypes_internal.h"
#include "lockstep/tensor/random/random_ops_internal.h"

namespace lockstep {
namespace {

// Linear in x: the gradient is the same function of the gradient.
Tensor dropout_at(const random::Position& position, double keep, const Tensor& x) {
  return record(
      "dropout", raw::mul(x, raw::dropout_mask(x.shape(), keep, x.options(), position)), {x},
      [position, keep](const Tensor& grad, const Needs&) { return Gradients{dropout_at(position, keep, grad)}; });
}

}  // namespace

Tensor dropout(const Tensor& x, double p, bool training) {
  LOCKSTEP_CHECK(p >= 0 && p <= 1, "dropout: p is {}, expected 0 to 1", p);
  if (!training || p == 0) return x;
  LOCKSTEP_CHECK(x.is_floating_point(), "dropout: x is {}, expected floating point", describe(x));
  if (is_half(x.dtype())) return dropout(x.to(kFloat32), p).to(x.dtype());
  return dropout_at(p < 1 ? raw::next_dropout(x.numel(), x.device()) : random::Position(), 1 - p, x);
}

}  // namespace lockstep
