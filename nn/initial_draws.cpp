// Initial values that are not drawn by a kernel: truncated normal distributions and orthogonal matrices. They are computed
// on the CPU and copied to their device.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "lockstep/nn/initial_internal.h"
#include "lockstep/tensor/ops/matrices_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"
#include "lockstep/tensor/random/random_ops_internal.h"

namespace lockstep::nn {
namespace {

double normal_probability(double x) { return std::erfc(-x / std::numbers::sqrt2) / 2; }

// The x with probability p, for p up to 1/2: a start from the tail's asymptotic form, then Halley's method.
double lower_quantile(double p) {
  const double t = std::sqrt(-2 * std::log(p));
  double x = (2.515517 + t * (0.802853 + t * 0.010328)) / (1 + t * (1.432788 + t * (0.189269 + t * 0.001308))) - t;
  for (int i = 0; i < 3; ++i) {
    const double u = (normal_probability(x) - p) * std::sqrt(2 * std::numbers::pi) * std::exp(x * x / 2);
    x -= u / (1 + x * u / 2);
  }
  return x;
}
double normal_quantile(double p) {
  p = std::clamp(p, 1e-300, 1 - 1e-16);
  return p <= 0.5 ? lower_quantile(p) : -lower_quantile(1 - p);
}

// Draws are f32 for tensors of fewer bits.
DType drawn_dtype(const TensorOptions& options) {
  return options.dtype.value_or(kFloat32) == kFloat64 ? kFloat64 : kFloat32;
}

Tensor moved(const Tensor& x, const TensorOptions& options) {
  return raw::to(raw::to(x, options.dtype.value_or(kFloat32)), options.device.value_or(Device()));
}

}  // namespace

Tensor truncated_normal(const Initial& rule, std::int64_t first, const Shape& shape, const TensorOptions& options) {
  const DType dtype = drawn_dtype(options);
  const Tensor uniform = raw::uniform_at(rule.position, first, shape, 0, 1, {.dtype = dtype});
  const double low = normal_probability((rule.low - rule.a) / rule.b),
               high = normal_probability((rule.high - rule.a) / rule.b);
  std::vector<double> values = uniform.to_vector<double>();
  for (double& value : values)
    value = std::clamp(rule.a + rule.b * normal_quantile(low + value * (high - low)), rule.low, rule.high);
  return moved(raw::from_bytes(values.data(), shape, kFloat64), options);
}

// Q of a matrix with at least as many rows as columns is unique for a positive diagonal of R, and then uniformly
// distributed. (Mezzadri, 2007)
Tensor orthogonal(const Initial& rule, std::int64_t first, const Shape& shape, const TensorOptions& options) {
  const bool wide = rule.rows < rule.columns;
  const Shape tall{std::max(rule.rows, rule.columns), std::min(rule.rows, rule.columns)};
  const DType dtype = drawn_dtype(options);
  const Tensor normal = raw::normal_at(rule.position, 0, {rule.rows, rule.columns}, {.dtype = dtype});
  const auto [q, r] = raw::qr("orthogonal_", wide ? raw::transpose(normal, 0, 1) : normal, false);
  const Tensor signs =
      raw::where(raw::compare(raw::Compare::kLess, raw::diagonal(r, 0, 0, 1), raw::zeros({}, r.options())),
                 raw::full({}, -rule.a, r.options()), raw::full({}, rule.a, r.options()));
  const Tensor columns = raw::mul(q, signs);
  const Tensor flat = raw::reshape(raw::contiguous(wide ? raw::transpose(columns, 0, 1) : columns), {-1});
  return moved(raw::reshape(raw::slice(flat, 0, first, first + shape.numel(), 1), shape), options);
}

}  // namespace lockstep::nn
