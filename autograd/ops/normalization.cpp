// Layer, RMS and batch normalisation: forward and gradient side by side.
#include <limits>

#include "lockstep/autograd/checkpoint.h"
#include "lockstep/autograd/ops/autocast_internal.h"
#include "lockstep/autograd/ops/operations_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/tensor/ops/image_ops_internal.h"

namespace lockstep {

namespace {

// The gradients in public operations, for second derivatives. With z = (x - mean) / deviation, both statistics over
// `dims`, and g = grad weight: dx = (g - mean(g) - z mean(g z)) / deviation. The parameters broadcast from `shape`.
// RMS normalisation is not centered: it has 0 instead of mean and mean(g).
Gradients norm_gradients(const Tensor& grad, const Tensor& x, const Tensor& weight, const Shape& dims,
                         const Shape& shape, double eps, const Needs& needs, bool centered = true) {
  const auto minus_mean = [&](const Tensor& t) { return centered ? sub(t, mean(t, dims, true)) : t; };
  const Tensor deviations = minus_mean(x);
  const Tensor by_deviation = rsqrt(add(mean(mul(deviations, deviations), dims, true), eps));
  const Tensor z = mul(deviations, by_deviation);
  Tensor by_x;
  if (needs[0]) {
    const Tensor g = weight.defined() ? mul(grad, weight) : grad;
    const Tensor along_z = mul(z, mean(mul(g, z), dims, true));
    by_x = mul(by_deviation, sub(minus_mean(g), along_z));
  }
  return {by_x, needs[1] ? sum_to(mul(grad, z), shape) : Tensor(), needs[2] ? sum_to(grad, shape) : Tensor()};
}

// The tensor for the gradient of a parameter: its bucket view, or new memory; undefined if the gradient is not needed.
Tensor place_for(const Needs& needs, std::size_t input, const Shape& shape, const Tensor& like) {
  if (!needs[input]) return {};
  const Tensor view = needs.view(input);
  return view.defined() ? view : raw::empty(shape, like.options());
}

// The dimensions -count to -1.
Shape last(int count) {
  Shape dims;
  for (int i = -count; i < 0; ++i) dims.push_back(i);
  return dims;
}

// layer_norm, or rms_norm, which is not centered.
Tensor normalize_rows(const char* op, const Tensor& x, const Shape& shape, const Tensor& weight, const Tensor& bias,
                      double eps, bool centered) {
  require_defined(op, x, "x");
  if (widens(x, weight, bias)) {
    return rounded_result(normalize_rows(op, in_f32(x), shape, in_f32(weight), in_f32(bias), eps, centered), x.dtype());
  }
  raw::Normalized normalized = raw::layer_norm(op, x, shape, weight, bias, eps, centered);
  return record(op, std::move(normalized.out), {x, weight, bias},
                [x = Saved(x), w = Saved(weight, requires_grad(x)), statistics = normalized.statistics, shape, eps,
                 centered](const Tensor& grad, const Needs& needs) {
                  if (autograd::grad_mode())
                    return norm_gradients(grad, *x, *w, last(shape.dim()), shape, eps, needs, centered);
                  const Tensor by_weight = place_for(needs, 1, shape, grad), by_bias = place_for(needs, 2, shape, grad);
                  raw::layer_norm_backward_affine(grad, *x, statistics, by_weight, by_bias);
                  return Gradients{needs[0] ? raw::layer_norm_backward(grad, *x, *w, statistics, centered) : Tensor(),
                                   by_weight, by_bias};
                });
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Shape& shape, const Tensor& weight, const Tensor& bias, double eps) {
  return normalize_rows("layer_norm", x, shape, weight, bias, eps, /*centered=*/true);
}

Tensor rms_norm(const Tensor& x, const Shape& shape, const Tensor& weight, std::optional<double> eps) {
  require_defined("rms_norm", x, "x");
  const double epsilon =
      x.dtype() == kFloat64 ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
  return normalize_rows("rms_norm", x, shape, weight, {}, eps.value_or(epsilon), /*centered=*/false);
}

namespace {

// The shape that broadcasts one element per channel to x (batch, channels, ...).
Shape channel_shape(const Tensor& x) {
  Shape shape = {x.size(1)};
  for (int i = 2; i < x.dim(); ++i) shape.push_back(1);
  return shape;
}

// The gradients in public operations, for second derivatives.
Gradients batch_norm_gradients(const Tensor& grad, const Tensor& x, const Tensor& weight, double eps,
                               const Needs& needs) {
  const Shape shape = channel_shape(x);
  Shape dims = last(x.dim() - 2);
  dims.push_back(0);
  Gradients gradients =
      norm_gradients(grad, x, weight.defined() ? weight.reshape(shape) : weight, dims, shape, eps, needs);
  for (std::size_t i = 1; i < gradients.size(); ++i) {
    if (gradients[i].defined()) gradients[i] = gradients[i].reshape({x.size(1)});
  }
  return gradients;
}

// Normalizes by the statistics of the batch, and updates the running statistics.
Tensor normalize_batch(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                       const Tensor& running_var, double momentum, double eps) {
  const bool updates = !autograd::is_recomputing();
  raw::BatchNormalized normalized = raw::batch_norm(x, weight, bias, updates ? running_mean : Tensor(),
                                                    updates ? running_var : Tensor(), momentum, eps);
  return record("batch_norm", std::move(normalized.out), {x, weight, bias},
                [x = Saved(x), w = Saved(weight, requires_grad(x)), statistics = normalized.statistics, eps](
                    const Tensor& grad, const Needs& needs) {
                  if (autograd::grad_mode()) return batch_norm_gradients(grad, *x, *w, eps, needs);
                  const Shape shape = {x->size(1)};
                  const Tensor by_weight = place_for(needs, 1, shape, grad), by_bias = place_for(needs, 2, shape, grad);
                  const Tensor by_x =
                      raw::batch_norm_backward(grad, *x, needs[0] ? *w : Tensor(), statistics, by_weight, by_bias);
                  return Gradients{needs[0] ? by_x : Tensor(), by_weight, by_bias};
                });
}

// Writes running statistics that were updated in f32 to the buffer, if that is f16 or bf16.
void keep_statistics(const Tensor& updated, const Tensor& buffer) {
  if (!buffer.defined() || !is_half(buffer.dtype())) return;
  raw::copy(updated, buffer);
  buffer.impl().storage->bump_version();
}

void require_per_channel(const char* name, const Tensor& tensor, const Tensor& x) {
  LOCKSTEP_CHECK(!tensor.defined() || tensor.shape() == Shape{x.size(1)}, "batch_norm: {} is {}, x is {}", name,
                 describe(tensor), describe(x));
}

}  // namespace

Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                  const Tensor& running_var, bool training, double momentum, double eps) {
  require_defined("batch_norm", x, "x");
  if (widens(x, weight, bias, running_mean, running_var)) {
    const Tensor wide_mean = in_f32(running_mean), wide_var = in_f32(running_var);
    const Tensor out =
        batch_norm(in_f32(x), in_f32(weight), in_f32(bias), wide_mean, wide_var, training, momentum, eps);
    if (training && !autograd::is_recomputing()) {
      keep_statistics(wide_mean, running_mean);
      keep_statistics(wide_var, running_var);
    }
    return rounded_result(out, x.dtype());
  }
  if (training) return normalize_batch(x, weight, bias, running_mean, running_var, momentum, eps);
  LOCKSTEP_CHECK(x.dim() >= 2, "batch_norm: x must be (batch, channels, ...), got {}", describe(x));
  LOCKSTEP_CHECK(running_mean.defined() && running_var.defined(),
                 "batch_norm: running_mean and running_var are required when not training");
  require_per_channel("running_mean", running_mean, x);
  require_per_channel("running_var", running_var, x);
  require_per_channel("weight", weight, x);
  require_per_channel("bias", bias, x);
  return named("batch_norm", [&] {  // x scale + shift
    const Tensor by_deviation = rsqrt(add(running_var, eps));
    const Tensor scale = weight.defined() ? mul(weight, by_deviation) : by_deviation;
    const Tensor from_mean = neg(mul(running_mean, scale)), shift = bias.defined() ? add(bias, from_mean) : from_mean;
    const Shape shape = channel_shape(x);
    return add(mul(x, scale.reshape(shape)), shift.reshape(shape));
  });
}

}  // namespace lockstep
