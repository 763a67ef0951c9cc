// The pointwise functions, generated from pointwise.def: y = f(x), gradient grad f'(x, y).
#include <cmath>
#include <limits>

#include "lockstep/autograd/ops/operations_internal.h"
#include "lockstep/base/check_internal.h"

namespace lockstep {

using raw::Pointwise;
using raw::PointwiseParams;

namespace {

// grad f''(x): the second derivative, by evaluating f' on a dual number. Third derivatives are not available this way.
Tensor second_derivative(Pointwise op, const Tensor& grad, const Tensor& x, const PointwiseParams& params) {
  return record(raw::name(op), raw::pointwise_second_derivative(op, grad, x, params), {grad, x},
                [op](const Tensor&, const Needs&) -> Gradients {
                  throw InvalidArgument(
                      fmt::format("{}: third derivatives of pointwise functions are not available; wrap it in an "
                                  "autograd::Function whose backward consists of other operations",
                                  raw::name(op)));
                });
}

// grad f'(x), recorded only under create_graph, for second derivatives.
Tensor derivative(Pointwise op, const Tensor& grad, const Tensor& x, const Tensor& y, const PointwiseParams& params) {
  if (!autograd::grad_mode()) return raw::pointwise_derivative(op, grad, x, y, params);
  return record(raw::name(op), raw::pointwise_derivative(op, grad, x, y, params), {grad, x},
                [op, g = Saved(grad), x = Saved(x), y = Saved(y.defined() ? y.detach() : y), params](
                    const Tensor& gg, const Needs& needs) {
                  return Gradients{needs[0] ? derivative(op, gg, *x, *y, params) : Tensor(),
                                   needs[1] ? second_derivative(op, mul(gg, *g), *x, params) : Tensor()};
                });
}

Tensor apply(Pointwise op, const Tensor& x, const PointwiseParams& params = {}) {
  require_defined(raw::name(op), x);
  if (!x.is_floating_point()) return raw::pointwise(op, x, params);
  if (op == Pointwise::neg) {  // the derivative is a constant: nothing is saved
    return record(raw::name(op), raw::pointwise(op, x, params), {x},
                  [](const Tensor& grad, const Needs&) { return Gradients{neg(grad)}; });
  }
  return record(raw::name(op), raw::pointwise(op, x, params), {x},
                [op, x = Saved(x), params](const Tensor& grad, const Needs&, const Tensor& y) {
                  return Gradients{derivative(op, grad, *x, y, params)};
                });
}

}  // namespace

#define POINTWISE(name, ...) \
  Tensor name(const Tensor& x) { return apply(Pointwise::name, x); }
#define POINTWISE_WITH_PARAMETERS(...)
#include "lockstep/tensor/ops/pointwise.def"
#undef POINTWISE

Tensor leaky_relu(const Tensor& x, double slope) { return apply(Pointwise::leaky_relu, x, {slope}); }
Tensor elu(const Tensor& x, double alpha) { return apply(Pointwise::elu, x, {alpha}); }
Tensor softplus(const Tensor& x, double beta, double threshold) {
  return apply(Pointwise::softplus, x, {beta, threshold});
}

Tensor clamp(const Tensor& x, const std::optional<Scalar>& lo, const std::optional<Scalar>& hi) {
  require_defined("clamp", x);
  LOCKSTEP_CHECK(lo || hi, "clamp: {} needs a limit, but neither is given; pass lo, hi or both", describe(x));
  DType dtype = x.dtype();
  for (const auto& limit : {lo, hi}) dtype = limit ? promote(dtype, *limit) : dtype;
  LOCKSTEP_CHECK(dtype != kBool, "clamp: bool tensors have no order, got {}; convert with to(kInt64)", describe(x));
  if (!is_floating_point(dtype)) return named("clamp", [&] { return raw::clamp_integers(raw::to(x, dtype), lo, hi); });
  constexpr double kAbsent = std::numeric_limits<double>::quiet_NaN();
  const PointwiseParams limits = {lo ? lo->to_double() : kAbsent, hi ? hi->to_double() : kAbsent};
  if ((lo && std::isnan(limits.a)) || (hi && std::isnan(limits.b))) {
    return named("clamp", [&] { return add(mul(x, 0.0), kAbsent); });  // NaN everywhere
  }
  return apply(Pointwise::clamp, x, limits);
}

Tensor clamp_min(const Tensor& x, const Scalar& lo) {
  return named("clamp_min", [&] { return clamp(x, lo); });
}
Tensor clamp_max(const Tensor& x, const Scalar& hi) {
  return named("clamp_max", [&] { return clamp(x, std::nullopt, hi); });
}

namespace {

Tensor power(const Tensor& base, const Scalar& exponent) {
  require_defined("pow", base, "base");
  const double p = exponent.to_double();
  if (!base.is_floating_point() && !exponent.is_floating_point()) {
    LOCKSTEP_CHECK(p >= 0, "pow: integers to the power {} are not integers; convert with to(kFloat32)", p);
    return raw::pow(base, raw::scalar_like("pow", base, exponent));
  }
  if (p == 2 && base.is_floating_point()) return mul(base, base);
  if (p == -1) return 1 / base;
  if (p == 0.5) return sqrt(base);
  return apply(Pointwise::pow_scalar, base, {p});
}

}  // namespace

Tensor pow(const Tensor& base, const Scalar& exponent) {
  return named("pow", [&] { return power(base, exponent); });
}

Tensor operator-(const Tensor& a) { return neg(a); }

}  // namespace lockstep
