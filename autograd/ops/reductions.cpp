// Reductions, softmax and cumulative sums: forward and gradient side by side.
#include <algorithm>
#include <limits>

#include "lockstep/autograd/ops/autocast_internal.h"
#include "lockstep/autograd/ops/operations_internal.h"
#include "lockstep/base/check_internal.h"

namespace lockstep {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();

// Empty `dims` reduce all elements. So does dimension 0 or -1 of a 0-d tensor.
bool reduces_all(const Shape& shape, const Shape& dims) { return dims.empty() || shape.empty(); }

// `reduced` expanded to `shape`: dimensions that were reduced without keepdim are first restored as size 1.
Tensor spread(const Tensor& reduced, const Shape& shape, const Shape& dims) {
  Shape kept = shape;
  if (reduces_all(shape, dims))
    std::fill(kept.begin(), kept.end(), 1);
  else
    for (std::int64_t dim : dims) kept[static_cast<std::size_t>(wrap_dim("sum", dim, shape.dim()))] = 1;
  return (reduced.shape() == kept ? reduced : reduced.reshape(kept)).expand(shape);
}

std::int64_t reduced_count(const Shape& shape, const Shape& dims) {
  if (reduces_all(shape, dims)) return shape.numel();
  std::int64_t count = 1;
  for (std::int64_t dim : dims) count *= shape[static_cast<std::size_t>(wrap_dim("mean", dim, shape.dim()))];
  return count;
}

}  // namespace

Tensor sum(const Tensor& x, const Shape& dims, bool keepdim) {
  require_defined("sum", x);
  if (is_half(x.dtype())) return rounded_result(sum(in_f32(x), dims, keepdim), x.dtype());
  return record("sum", raw::sum(x, dims, keepdim), {x}, [shape = x.shape(), dims](const Tensor& grad, const Needs&) {
    return Gradients{spread(grad, shape, dims)};
  });
}

Tensor sum(const Tensor& x, const Shape& dims, bool keepdim, const Tensor& view) {
  if (!view.defined()) return sum(x, dims, keepdim);
  raw::sum_out(x, dims, keepdim, view);
  return view;
}

Tensor mean(const Tensor& x, const Shape& dims, bool keepdim) {
  require_defined("mean", x);
  if (is_half(x.dtype())) return rounded_result(mean(in_f32(x), dims, keepdim), x.dtype());
  return record("mean", raw::mean(x, dims, keepdim), {x}, [shape = x.shape(), dims](const Tensor& grad, const Needs&) {
    const double count = static_cast<double>(reduced_count(shape, dims));
    return Gradients{spread(div(grad, count), shape, dims)};
  });
}

namespace {

// amax and amin: elements equal to the result share its gradient. Nothing is equal to NaN, whose gradient is 0 / 0.
Tensor extreme(const char* name, Tensor out, const Tensor& x, const Shape& dims) {
  return record(name, std::move(out), {x}, [x = Saved(x), dims](const Tensor& grad, const Needs&, const Tensor& out) {
    const Tensor chosen = (*x == spread(out, x->shape(), dims)).to(grad.dtype());
    return Gradients{div(mul(spread(grad, x->shape(), dims), chosen), raw::sum(chosen, dims, true))};
  });
}

// Like extreme, but NaN has a gradient: if the result is NaN, all NaN elements share the gradient.
Tensor extreme_or_nan(const char* name, Tensor out, const Tensor& x, const Shape& dims) {
  return record(name, std::move(out), {x}, [x = Saved(x), dims](const Tensor& grad, const Needs&, const Tensor& out) {
    const Tensor chosen = (*x == spread(out, x->shape(), dims)) + (*x != *x);
    const Tensor count = raw::sum(chosen, dims, true).to(grad.dtype());
    return Gradients{where(chosen, div(spread(grad, x->shape(), dims), count), 0.0)};
  });
}

// max and min along one dimension: gathers the values by index, so that the gradient is that of gather.
std::pair<Tensor, Tensor> extreme_at(const Tensor& x, const Tensor& index, std::int64_t dim, bool keepdim) {
  const Tensor values = gather(x, dim, index);
  return keepdim ? std::pair(values, index) : std::pair(values.squeeze(dim), index.squeeze(dim));
}

}  // namespace

Tensor amax(const Tensor& x, const Shape& dims, bool keepdim) {
  require_defined("amax", x);
  return extreme("amax", raw::max(x, dims, keepdim, "amax"), x, dims);
}
Tensor amin(const Tensor& x, const Shape& dims, bool keepdim) {
  require_defined("amin", x);
  return extreme("amin", raw::min(x, dims, keepdim, "amin"), x, dims);
}
Tensor max(const Tensor& x) {
  require_defined("max", x);
  return extreme_or_nan("max", raw::max(x), x, {});
}
Tensor min(const Tensor& x) {
  require_defined("min", x);
  return extreme_or_nan("min", raw::min(x), x, {});
}
std::pair<Tensor, Tensor> max(const Tensor& x, std::int64_t dim, bool keepdim) {
  require_defined("max", x);
  return extreme_at(x, raw::argmax(x, dim, true, "max"), dim, keepdim);
}
std::pair<Tensor, Tensor> min(const Tensor& x, std::int64_t dim, bool keepdim) {
  require_defined("min", x);
  return extreme_at(x, raw::argmin(x, dim, true, "min"), dim, keepdim);
}

// var = sum (x - mean)^2 / (n - correction), so d/dx = 2 (x - mean) / (n - correction). Over all elements, with a
// correction of n or more, the gradient is infinity, and NaN where x equals the mean, as in PyTorch.
Tensor var(const Tensor& x, const Shape& dims, const VarOptions& options) {
  require_defined("var", x);
  if (is_half(x.dtype())) return rounded_result(var(in_f32(x), dims, options), x.dtype());
  return record("var", raw::var(x, dims, options.keepdim, options.correction), {x},
                [x = Saved(x), dims, correction = options.correction](const Tensor& grad, const Needs&) {
                  const double divisor = static_cast<double>(reduced_count(x->shape(), dims) - correction);
                  const Tensor center = mean(*x, dims, true), whole = spread(grad, x->shape(), dims);
                  if (divisor <= 0 && reduces_all(x->shape(), dims)) {
                    const Tensor infinity = raw::full({}, kInfinity, grad.options());
                    return Gradients{mul(whole, where(*x == center, kNaN, infinity))};
                  }
                  return Gradients{mul(whole, mul(sub(*x, center), 2.0 / divisor))};
                });
}

// The gradient is 1 / (2 std), and 0 where std is 0.
Tensor std(const Tensor& x, const Shape& dims, const VarOptions& options) {
  require_defined("std", x);
  if (is_half(x.dtype())) return rounded_result(std(in_f32(x), dims, options), x.dtype());
  const Tensor variance = named("std", [&] { return var(x, dims, options); });
  return record("std", raw::pointwise(raw::Pointwise::sqrt, variance), {variance},
                [](const Tensor& grad, const Needs&, const Tensor& out) {
                  return Gradients{where(out == 0.0, 0.0, div(grad, mul(out, 2.0)))};
                });
}

namespace {

// d/dx = x / norm, and 0 where the norm is 0.
Tensor euclidean(const Tensor& x, const Shape& dims, bool keepdim) {
  return record("norm", raw::norm(x, dims, keepdim), {x},
                [x = Saved(x), dims](const Tensor& grad, const Needs&, const Tensor& out) {
                  const Tensor divisor = where(out == 0.0, 1.0, out);
                  return Gradients{mul(*x, spread(div(grad, divisor), x->shape(), dims))};
                });
}

// d/dx = sign(x) |x|^(p-1) / norm^(p-1), and 0 where x or the norm is 0.
Tensor general_norm(const Tensor& x, double p, const Shape& dims, bool keepdim) {
  return record("norm", raw::p_norm(x, p, dims, keepdim), {x},
                [x = Saved(x), p, dims](const Tensor& grad, const Needs&, const Tensor& out) {
                  const Tensor size = abs(*x), power = pow(size, p - 1);
                  const Tensor own = where(*x == 0.0, 0.0, where(*x < 0.0, neg(power), power));
                  const Tensor factor = where(out == 0.0, 0.0, div(grad, pow(out, p - 1)));
                  return Gradients{mul(own, spread(factor, x->shape(), dims))};
                });
}

Tensor norm_of(const Tensor& x, double power, const Shape& dims, bool keepdim) {
  if (power == 2) return euclidean(x, dims, keepdim);
  LOCKSTEP_CHECK(x.dtype() == kFloat32 || x.dtype() == kFloat64, "norm: needs f32 or f64, got {}", describe(x));
  if (power == 0)
    return record(
        "norm", raw::sum(raw::to(x != 0.0, x.dtype()), dims, keepdim), {x},
        [shape = x.shape()](const Tensor& grad, const Needs&) { return Gradients{raw::zeros(shape, grad.options())}; });
  if (power == 1) return sum(abs(x), dims, keepdim);
  const Tensor size = abs(x);
  if (power == kInfinity) return extreme_or_nan("norm", raw::max(size, dims, keepdim, "norm"), size, dims);
  if (power == -kInfinity) return extreme_or_nan("norm", raw::min(size, dims, keepdim, "norm"), size, dims);
  return general_norm(x, power, dims, keepdim);
}

}  // namespace

Tensor norm(const Tensor& x, const Scalar& p, const Shape& dims, bool keepdim) {
  require_defined("norm", x);
  if (is_half(x.dtype())) return rounded_result(norm(in_f32(x), p, dims, keepdim), x.dtype());
  return named("norm", [&] { return norm_of(x, p.to_double(), dims, keepdim); });
}

Tensor normalize(const Tensor& x, double p, std::int64_t dim, double eps) {
  return named("normalize", [&] { return x / clamp_min(norm(x, p, dim, true), eps); });
}

Tensor cosine_similarity(const Tensor& a, const Tensor& b, std::int64_t dim, double eps) {
  return named("cosine_similarity", [&] {
    const Shape shape = broadcast_shapes("cosine_similarity", a.shape(), b.shape());
    return sum(normalize(a.expand(shape), 2, dim, eps) * normalize(b.expand(shape), 2, dim, eps), dim);
  });
}

std::pair<Tensor, Tensor> var_mean(const Tensor& x, const Shape& dims, const VarOptions& options) {
  return named("var_mean", [&] { return std::pair(var(x, dims, options), mean(x, dims, options.keepdim)); });
}
std::pair<Tensor, Tensor> std_mean(const Tensor& x, const Shape& dims, const VarOptions& options) {
  return named("std_mean", [&] { return std::pair(std(x, dims, options), mean(x, dims, options.keepdim)); });
}

Tensor count_nonzero(const Tensor& x, const Shape& dims) {
  return named("count_nonzero", [&] { return raw::sum(x != 0, dims); });
}

namespace {

// The gradient of x, whose product along dimension d has the gradient `grad`, of size 1 there: the first half of the
// elements is multiplied by the second until one element is left, and the gradients of these products are multiplied on
// the way back. This divides by no element, so zeros need no special case.
Tensor factors(const Tensor& x, const Tensor& grad, int d) {
  const std::int64_t n = x.size(d), half = n / 2;
  if (n < 2) return grad.expand(x.shape());
  const Tensor a = x.narrow(d, 0, half), b = x.narrow(d, half, half), last = x.narrow(d, 2 * half, n % 2);
  const Tensor slopes = factors(cat({a * b, last}, d), grad, d), of_pairs = slopes.narrow(d, 0, half);
  return cat({of_pairs * b, of_pairs * a, slopes.narrow(d, half, n % 2)}, d);
}

}  // namespace

Tensor prod(const Tensor& x, std::int64_t dim, bool keepdim) {
  require_defined("prod", x);
  if (is_half(x.dtype())) return rounded_result(prod(in_f32(x), dim, keepdim), x.dtype());
  if (!x.is_floating_point() && x.dtype() != kInt64) return prod(x.to(kInt64), dim, keepdim);
  return record("prod", raw::prod(x, dim, keepdim), {x}, [x = Saved(x), dim](const Tensor& grad, const Needs&) {
    if (x->dim() == 0) return Gradients{grad};
    const int d = wrap_dim("prod", dim, x->dim());
    return Gradients{factors(*x, grad.dim() == x->dim() ? grad : grad.unsqueeze(d), d)};
  });
}
Tensor prod(const Tensor& x) {
  require_defined("prod", x);
  return prod(x.flatten(), 0);
}

Tensor logsumexp(const Tensor& x, const Shape& dims, bool keepdim) {
  require_defined("logsumexp", x);
  if (is_half(x.dtype())) return rounded_result(logsumexp(in_f32(x), dims, keepdim), x.dtype());
  return record("logsumexp", named("logsumexp", [&] { return raw::logsumexp(x, dims, keepdim); }), {x},
                [x = Saved(x), dims](const Tensor& grad, const Needs&, const Tensor& out) {
                  return Gradients{mul(spread(grad, x->shape(), dims), exp(sub(*x, spread(out, x->shape(), dims))))};
                });
}

namespace {

// `out`, a result over all elements of x, with x's number of dimensions if keepdim is set.
Tensor over_all(const Tensor& out, const Tensor& x, bool keepdim) {
  Shape ones = x.shape();
  std::fill(ones.begin(), ones.end(), 1);
  return keepdim ? raw::reshape(out, ones) : out;
}

}  // namespace

Tensor argmax(const Tensor& x, std::optional<std::int64_t> dim, bool keepdim) {
  require_defined("argmax", x);
  return dim ? raw::argmax(x, *dim, keepdim) : over_all(raw::argmax(raw::reshape(x, {-1}), 0), x, keepdim);
}
Tensor argmin(const Tensor& x, std::optional<std::int64_t> dim, bool keepdim) {
  require_defined("argmin", x);
  return dim ? raw::argmin(x, *dim, keepdim) : over_all(raw::argmin(raw::reshape(x, {-1}), 0), x, keepdim);
}

namespace {

// The gradient of a cumulative sum is a cumulative sum in the opposite direction.
Tensor cumulate(const Tensor& x, std::int64_t dim, bool reverse) {
  return record("cumsum", raw::cumsum(x, dim, reverse), {x},
                [dim, reverse](const Tensor& grad, const Needs&) { return Gradients{cumulate(grad, dim, !reverse)}; });
}

}  // namespace

Tensor cumsum(const Tensor& x, std::int64_t dim) {
  require_defined("cumsum", x);
  if (is_half(x.dtype())) return rounded_result(cumsum(in_f32(x), dim), x.dtype());
  return cumulate(x, dim, false);
}

// dx = y (g - sum(g y))
Tensor softmax(const Tensor& x, std::int64_t dim) {
  require_defined("softmax", x);
  if (is_half(x.dtype())) return rounded_result(softmax(in_f32(x), dim), x.dtype());
  return record("softmax", raw::softmax(x, dim), {x}, [dim](const Tensor& grad, const Needs&, const Tensor& y) {
    if (!autograd::grad_mode()) return Gradients{raw::softmax_backward(grad, y, dim)};
    return Gradients{mul(y, sub(grad, sum(mul(grad, y), {dim}, true)))};
  });
}

// dx = g - e^y sum(g)
Tensor log_softmax(const Tensor& x, std::int64_t dim) {
  require_defined("log_softmax", x);
  if (is_half(x.dtype())) return rounded_result(log_softmax(in_f32(x), dim), x.dtype());
  return record("log_softmax", raw::log_softmax(x, dim), {x}, [dim](const Tensor& grad, const Needs&, const Tensor& y) {
    if (!autograd::grad_mode()) return Gradients{raw::log_softmax_backward(grad, y, dim)};
    return Gradients{sub(grad, mul(exp(y), sum(grad, {dim}, true)))};
  });
}

}  // namespace lockstep
