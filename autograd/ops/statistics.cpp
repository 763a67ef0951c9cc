#include "lockstep/autograd/ops/statistics.h"

#include <cmath>
#include <limits>
#include <vector>

#include "lockstep/autograd/ops/autocast_internal.h"
#include "lockstep/autograd/ops/creation.h"
#include "lockstep/autograd/ops/operations_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/tensor/ops/statistics_internal.h"

namespace lockstep {
namespace {

// The dimension; throws if it has no elements to choose from.
int dim_with_elements(const char* op, const Tensor& x, std::int64_t dim) {
  const int d = wrap_dim(op, dim, x.dim());
  LOCKSTEP_CHECK(x.size(d) > 0, "{}: dimension {} of {} has no elements", op, dim, describe(x));
  return d;
}

Tensor recurrence(const Tensor& a, const Tensor& b, int dim, bool reverse);

// y before each position: y with a 0 in front, or at the end, and without its last element.
Tensor previous(const Tensor& y, int dim, bool reverse) {
  const std::int64_t n = y.size(dim);
  const Tensor kept = y.narrow(dim, reverse ? 1 : 0, n - 1);
  Shape shape = y.shape();
  shape[static_cast<std::size_t>(dim)] = 1;
  const Tensor zero = raw::zeros(shape, y.options());
  return reverse ? cat({kept, zero}, dim) : cat({zero, kept}, dim);
}

// The gradient of b is a recurrence in the other direction: s[i] = grad[i] + a[i + 1] s[i + 1]. That of a is s times the
// previous result.
Tensor recurrence(const Tensor& a, const Tensor& b, int dim, bool reverse) {
  return record("recurrence", raw::recurrence(a, b, dim, reverse), {a, b},
                [a = Saved(a), dim, reverse](const Tensor& grad, const Needs&, const Tensor& y) {
                  const Tensor s = recurrence(roll(*a, reverse ? 1 : -1, dim), grad, dim, !reverse);
                  return Gradients{s * previous(y, dim, reverse), s};
                });
}

// The two elements at `ranks`, positions along the last dimension of `sorted`, and the value between them.
Tensor between(const Tensor& sorted, const std::vector<double>& ranks, Interpolation kind) {
  std::vector<std::int64_t> low, high;
  std::vector<double> weights;
  for (const double rank : ranks) {
    const double nearest = std::nearbyint(rank);
    const double first = kind == Interpolation::kNearest  ? nearest
                         : kind == Interpolation::kHigher ? std::ceil(rank)
                                                          : std::floor(rank);
    low.push_back(static_cast<std::int64_t>(first));
    high.push_back(static_cast<std::int64_t>(std::ceil(rank)));
    weights.push_back(kind == Interpolation::kMidpoint ? 0.5 : rank - first);
  }
  const auto at = [&](const std::vector<std::int64_t>& positions) {
    return index_select(sorted, -1, tensor(positions).to(sorted.device()));
  };
  if (kind != Interpolation::kLinear && kind != Interpolation::kMidpoint) return at(low);
  const Tensor a = at(low), b = at(high), weight = tensor(weights, {.dtype = sorted.dtype()}).to(sorted.device());
  return where(weight < 0.5, a + weight * (b - a), b - (b - a) * (1 - weight));
}

// The quantiles along a new first dimension.
Tensor quantiles(const Tensor& x, const Tensor& q, const QuantileOptions& options) {
  LOCKSTEP_CHECK((x.dtype() == kFloat32 || x.dtype() == kFloat64) && q.dtype() == x.dtype(),
                 "quantile: x is {}, q is {}; expected f32 or f64, and one dtype", describe(x), describe(q));
  for (const double each : q.to_vector<double>())
    LOCKSTEP_CHECK(each >= 0 && each <= 1, "quantile: q is {}, expected 0 to 1", each);
  const Tensor flat = options.dim && x.dim() > 0 ? x : x.flatten();
  const int d = dim_with_elements("quantile", flat, options.dim && x.dim() > 0 ? *options.dim : 0);
  const Tensor sorted = sort(flat.transpose(d, -1), -1).first;
  const std::vector<double> ranks =
      raw::mul(q.detach(), raw::full({}, sorted.size(-1) - 1, q.options())).to_vector<double>();
  Tensor out = between(sorted, ranks, options.interpolation);  // (..., quantiles)
  const Tensor largest = sorted.narrow(-1, sorted.size(-1) - 1, 1);
  out = where(isnan(largest), largest, out).transpose(d, -1);  // NaN is last
  if (!options.dim && options.keepdim) {
    Shape ones(x.shape());
    for (std::int64_t& size : ones) size = 1;
    ones.insert(0, out.numel());
    return out.reshape(ones);
  }
  const Tensor first = movedim(out, {d}, {0});
  return options.keepdim ? first.unsqueeze(d + 1) : first;
}

}  // namespace

Tensor median(const Tensor& x) {
  LOCKSTEP_CHECK(x.numel() > 0, "median: {} has no elements", describe(x));
  Tensor middle;
  {
    const NoGradGuard no_grad;
    middle = median(x.flatten(), 0).first;
  }
  return record("median", middle, {x}, [x = Saved(x)](const Tensor& grad, const Needs&, const Tensor& out) {
    const Tensor chosen = logical_or(*x == out, *x != *x);  // the second only if the median is NaN
    return Gradients{where(chosen, grad / raw::sum(chosen).to(grad.dtype()), 0.0)};
  });
}

std::pair<Tensor, Tensor> median(const Tensor& x, std::int64_t dim, bool keepdim) {
  if (x.dim() == 0) {
    auto [value, index] = median(x.unsqueeze(0), dim);
    return {value, index};
  }
  const int d = dim_with_elements("median", x, dim);
  const Tensor middle = sort(x.detach(), d).second.narrow(d, (x.size(d) - 1) / 2, 1);
  const Tensor is_nan = isnan(x.detach());
  const Tensor index = where(any(is_nan, d, true), argmax(is_nan, d, true), middle);
  const Tensor values = gather(x, d, index);
  return keepdim ? std::pair(values, index) : std::pair(values.squeeze(d), index.squeeze(d));
}

Tensor quantile(const Tensor& x, double q, const QuantileOptions& options) {
  return quantile(x, raw::full({}, q, {.dtype = x.dtype()}), options);
}
Tensor quantile(const Tensor& x, const Tensor& q, const QuantileOptions& options) {
  LOCKSTEP_CHECK(q.dim() <= 1, "quantile: q is {}, expected a number or 1-D", describe(q));
  const Tensor out = named("quantile", [&] { return quantiles(x, q.reshape({-1}), options); });
  return q.dim() == 0 ? out.squeeze(0) : out;
}

Unique unique(const Tensor& x) {
  return named("unique", [&] {
    const NoGradGuard no_grad;
    const Tensor flat = x.detach().flatten();
    const std::int64_t n = flat.numel();
    const auto [sorted, order] = sort(flat, 0);
    const Tensor first = raw::full({n > 0 ? 1 : 0}, true, {.dtype = kBool, .device = x.device()});
    const Tensor is_new = n > 1 ? cat({first, sorted.narrow(0, 1, n - 1) != sorted.narrow(0, 0, n - 1)}) : first;
    const Tensor group = cumsum(is_new.to(kInt64), 0) - 1, values = masked_select(sorted, is_new);
    return Unique{.values = values,
                  .inverse = scatter(raw::zeros({n}, group.options()), 0, order, group).reshape(x.shape()),
                  .counts = bincount(group, {}, values.numel())};
  });
}

Tensor cumprod(const Tensor& x, std::int64_t dim) {
  if (is_half(x.dtype())) return rounded_result(cumprod(in_f32(x), dim), x.dtype());
  if (!x.is_floating_point() && x.dtype() != kInt64) return cumprod(x.to(kInt64), dim);
  const int d = wrap_dim("cumprod", dim, x.dim());
  if (x.dim() == 0) return x.clone();
  const std::int64_t n = x.size(d);
  if (n < 2) return x.clone();
  Shape rest = x.shape();
  rest[static_cast<std::size_t>(d)] = n - 1;
  return recurrence(x, cat({x.narrow(d, 0, 1), raw::zeros(rest, x.options())}, d), d, false);
}

Tensor histc(const Tensor& x, std::int64_t bins, double min, double max) {
  if (is_half(x.dtype())) return histc(in_f32(x), bins, min, max).to(x.dtype());
  LOCKSTEP_CHECK(x.is_floating_point() && bins >= 1 && min <= max,
                 "histc: x is {}, {} bins from {} to {}; expected floating point, at least one bin, and min <= max",
                 describe(x), bins, min, max);
  const Tensor own = x.detach();
  if (min == max && own.numel() > 0) {
    min = lockstep::min(own).item<double>();
    max = lockstep::max(own).item<double>();
  }
  LOCKSTEP_CHECK(std::isfinite(min) && std::isfinite(max), "histc: the range from {} to {} of {} is not finite", min,
                 max, describe(x));
  if (min == max) --min, ++max;
  return raw::histogram(own, bins, min, max);
}

Tensor bincount(const Tensor& x, const Tensor& weights, std::int64_t minlength) {
  LOCKSTEP_CHECK(x.dim() == 1 && is_integer(x.dtype()) && minlength >= 0,
                 "bincount: x is {}, minlength {}; expected 1-D integers, and at least 0", describe(x), minlength);
  LOCKSTEP_CHECK(!weights.defined() || (weights.shape() == x.shape() && weights.device() == x.device()),
                 "bincount: x is {}, the weights are {}; expected one for each element", describe(x),
                 describe(weights));
  return named("bincount", [&] {
    const NoGradGuard no_grad;
    const Tensor index = x.to(kInt64);
    std::int64_t size = minlength;
    if (x.numel() > 0) {
      const auto smallest = min(index).item<std::int64_t>();
      LOCKSTEP_CHECK(smallest >= 0, "bincount: {} has the element {}, expected at least 0", describe(x), smallest);
      size = std::max(size, max(index).item<std::int64_t>() + 1);
    }
    const Tensor each = !weights.defined()            ? raw::full(x.shape(), 1, index.options())
                        : weights.dtype() == kFloat32 ? weights.detach()
                                                      : weights.detach().to(kFloat64);
    return scatter_add(raw::zeros({size}, each.options()), 0, index, each);
  });
}

}  // namespace lockstep
