// Layer normalisation: forward and gradient side by side.
#include "lockstep/autograd/functions.h"
#include "lockstep/autograd/homes.h"
#include "lockstep/autograd/node.h"
#include "lockstep/tensor/ops.h"

namespace lockstep::inline LOCKSTEP_ABI {

using autograd::Gradients;
using autograd::Needs;
using autograd::record;
using autograd::requires_grad;
using autograd::Saved;

namespace {

// The gradients in public operations, for second derivatives. With z = (x - mean) / deviation and g = grad weight:
// dx = (g - mean(g) - z mean(g z)) / deviation.
Gradients layer_norm_gradients(const Tensor& grad, const Tensor& x, const Tensor& weight, const Shape& shape,
                               double eps, const Needs& needs) {
  Shape last;
  for (int i = -shape.dim(); i < 0; ++i) last.push_back(i);
  const Tensor centered = sub(x, mean(x, last, true));
  const Tensor by_deviation = rsqrt(add(mean(mul(centered, centered), last, true), eps));
  const Tensor z = mul(centered, by_deviation);
  Gradients gradients;
  if (needs[0]) {
    const Tensor g = weight.defined() ? mul(grad, weight) : grad;
    const Tensor along_z = mul(z, mean(mul(g, z), last, true));
    gradients.push_back(mul(by_deviation, sub(sub(g, mean(g, last, true)), along_z)));
  } else {
    gradients.push_back({});
  }
  gradients.push_back(needs[1] ? sum_to(mul(grad, z), shape) : Tensor());
  gradients.push_back(needs[2] ? sum_to(grad, shape) : Tensor());
  return gradients;
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Shape& shape, const Tensor& weight, const Tensor& bias, double eps) {
  raw::Normalized normalized = raw::layer_norm(x, shape, weight, bias, eps);
  return record(
      "layer_norm", std::move(normalized.out), {x, weight, bias},
      [x = Saved(x), w = Saved(weight, requires_grad(x)), statistics = normalized.statistics, shape, eps](
          const Tensor& grad, const Needs& needs) {
        if (autograd::grad_mode()) return layer_norm_gradients(grad, *x, *w, shape, eps, needs);
        const auto place = [&](std::size_t input) {
          if (!needs[input]) return Tensor();
          const Tensor home = needs.home(input);
          return home.defined() ? home : raw::empty(shape, grad.options());
        };
        const Tensor by_weight = place(1), by_bias = place(2);
        raw::layer_norm_backward_affine(grad, *x, statistics, by_weight, by_bias);
        return Gradients{needs[0] ? raw::layer_norm_backward(grad, *x, *w, statistics) : Tensor(), by_weight, by_bias};
      });
}

}  // namespace lockstep::inline LOCKSTEP_ABI
