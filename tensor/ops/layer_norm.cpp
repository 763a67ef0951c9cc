// Layer and RMS normalisation: checks and allocation around the kernels of tensor/cpu/kernels_rows.cpp.
#include "lockstep/tensor/ops/wrappers_internal.h"

namespace lockstep::raw {

namespace {

void require_parameter(const char* op, const char* name, const Tensor& parameter, const Shape& shape, const Tensor& x) {
  LOCKSTEP_CHECK(parameter.shape() == shape && parameter.dtype() == x.dtype() && parameter.device() == x.device(),
                 "{}: {} is {}, expected {} with the dtype and device of x, which is {}", op, name, describe(parameter),
                 shape.to_string(), describe(x));
}

// x as (outer, n); the statistics are (2, outer).
Rows normalized_rows(const Tensor& x, const Tensor& statistics) {
  const std::int64_t outer = statistics.size(1);
  return {.outer = outer, .n = outer > 0 ? x.numel() / outer : 0};
}

}  // namespace

Normalized layer_norm(const char* op, const Tensor& x, const Shape& shape, const Tensor& weight, const Tensor& bias,
                      double eps, bool centered) {
  require_float(op, x);
  LOCKSTEP_CHECK(!shape.empty(), "{}: the shape to normalise over is empty", op);
  const int dims = shape.dim();
  bool fits = x.dim() >= dims;
  for (int i = 1; fits && i <= dims; ++i) fits = x.size(-i) == shape[static_cast<std::size_t>(dims - i)];
  LOCKSTEP_CHECK(fits, "{}: x is {}, its last sizes should be {}", op, describe(x), shape.to_string());
  if (weight.defined()) require_parameter(op, "weight", weight, shape, x);
  if (bias.defined()) require_parameter(op, "bias", bias, shape, x);
  const Dense input(x), w(weight), b(bias);
  const std::int64_t n = shape.numel(), outer = n > 0 ? x.numel() / n : 0;
  Normalized result{.out = empty_like(x), .statistics = empty({2, outer}, x.options())};
  if (outer > 0)
    kernels(x.device())
        .layer_norm(input.data(), w.data(), b.data(), result.out.raw_data(), result.statistics.raw_data(),
                    {.outer = outer, .n = n}, x.dtype(), eps, centered);
  return result;
}

Tensor layer_norm_backward(const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& statistics,
                           bool centered) {
  require_same("layer_norm", grad, x);
  const Dense g(grad), input(x), w(weight);
  Tensor out = empty_like(x);
  if (out.numel() > 0)
    kernels(x.device())
        .layer_norm_backward(g.data(), input.data(), w.data(), statistics.raw_data(), out.raw_data(),
                             normalized_rows(x, statistics), x.dtype(), centered);
  return out;
}

void layer_norm_backward_affine(const Tensor& grad, const Tensor& x, const Tensor& statistics,
                                const Tensor& grad_weight, const Tensor& grad_bias) {
  require_same("layer_norm", grad, x);
  for (const Tensor* out : {&grad_weight, &grad_bias}) {
    if (!out->defined()) continue;
    require_same("layer_norm", *out, x);
    LOCKSTEP_CHECK(out->is_contiguous(), "layer_norm: the output for a gradient is not contiguous: {}", describe(*out));
    if (x.numel() == 0) fill(*out, 0);
  }
  if (x.numel() == 0 || (!grad_weight.defined() && !grad_bias.defined())) return;
  const Dense g(grad), input(x);
  kernels(x.device())
      .layer_norm_backward_affine(g.data(), input.data(), statistics.raw_data(), data_or_null(grad_weight),
                                  data_or_null(grad_bias), normalized_rows(x, statistics), x.dtype());
}

}  // namespace lockstep::raw
