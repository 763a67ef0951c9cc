// Reductions, softmax and cumulative sums: forward and gradient side by side.
#include "lockstep/autograd/functions.h"
#include "lockstep/autograd/homes.h"
#include "lockstep/autograd/node.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/ops.h"

namespace lockstep::inline LOCKSTEP_ABI {

using autograd::Gradients;
using autograd::Needs;
using autograd::record;
using autograd::Saved;

namespace {

// `reduced` spread over `shape` again: dims that were reduced without keepdim come back as size 1 first.
Tensor spread(const Tensor& reduced, const Shape& shape, const Shape& dims) {
  Shape kept = shape;
  if (dims.empty()) {
    for (std::int64_t& size : kept) size = 1;
  }
  for (std::int64_t dim : dims) kept[static_cast<std::size_t>(wrap_dim("sum", dim, shape.dim()))] = 1;
  return (reduced.shape() == kept ? reduced : reduced.reshape(kept)).expand(shape);
}

std::int64_t reduced_count(const Shape& shape, const Shape& dims) {
  if (dims.empty()) return shape.numel();
  std::int64_t count = 1;
  for (std::int64_t dim : dims) count *= shape[static_cast<std::size_t>(wrap_dim("mean", dim, shape.dim()))];
  return count;
}

}  // namespace

Tensor sum(const Tensor& x, const Shape& dims, bool keepdim) {
  return record("sum", raw::sum(x, dims, keepdim), {x}, [shape = x.shape(), dims](const Tensor& grad, const Needs&) {
    return Gradients{spread(grad, shape, dims)};
  });
}

Tensor sum(const Tensor& x, const Shape& dims, bool keepdim, const Tensor& home) {
  if (!home.defined()) return sum(x, dims, keepdim);
  raw::sum_out(x, dims, keepdim, home);
  return home;
}

Tensor mean(const Tensor& x, const Shape& dims, bool keepdim) {
  return record("mean", raw::mean(x, dims, keepdim), {x}, [shape = x.shape(), dims](const Tensor& grad, const Needs&) {
    const double count = static_cast<double>(reduced_count(shape, dims));
    return Gradients{spread(div(grad, count), shape, dims)};
  });
}

namespace {

// max and min: elements equal to the result share its gradient.
Tensor extreme(const char* name, Tensor out, const Tensor& x, const Shape& dims) {
  return record(name, std::move(out), {x}, [x = Saved(x), dims](const Tensor& grad, const Needs&, const Tensor& out) {
    const Tensor chosen = (*x == spread(out, x->shape(), dims)).to(grad.dtype());
    const Tensor ties = raw::sum(chosen, dims, true);
    return Gradients{mul(spread(grad, x->shape(), dims), div(chosen, ties))};
  });
}

}  // namespace

Tensor max(const Tensor& x, const Shape& dims, bool keepdim) {
  return extreme("max", raw::max(x, dims, keepdim), x, dims);
}
Tensor min(const Tensor& x, const Shape& dims, bool keepdim) {
  return extreme("min", raw::min(x, dims, keepdim), x, dims);
}

// var = sum (x - mean)^2 / (n - correction), so d/dx = 2 (x - mean) / (n - correction).
Tensor var(const Tensor& x, const Shape& dims, bool keepdim, std::int64_t correction) {
  return record("var", raw::var(x, dims, keepdim, correction), {x},
                [x = Saved(x), dims, correction](const Tensor& grad, const Needs&) {
                  const double divisor = static_cast<double>(reduced_count(x->shape(), dims) - correction);
                  const Tensor centered = sub(*x, mean(*x, dims, true));
                  return Gradients{mul(spread(grad, x->shape(), dims), mul(centered, 2.0 / divisor))};
                });
}

// d/dx = x / norm, and 0 where the norm is 0.
Tensor norm(const Tensor& x, const Shape& dims, bool keepdim) {
  return record("norm", raw::norm(x, dims, keepdim), {x},
                [x = Saved(x), dims](const Tensor& grad, const Needs&, const Tensor& out) {
                  const Tensor divisor = where(out == 0.0, 1.0, out);
                  return Gradients{mul(*x, spread(div(grad, divisor), x->shape(), dims))};
                });
}

Tensor logsumexp(const Tensor& x, const Shape& dims, bool keepdim) {
  return record("logsumexp", raw::logsumexp(x, dims, keepdim), {x},
                [x = Saved(x), dims](const Tensor& grad, const Needs&, const Tensor& out) {
                  return Gradients{mul(spread(grad, x->shape(), dims), exp(sub(*x, spread(out, x->shape(), dims))))};
                });
}

Tensor sum(const Tensor& x) { return sum(x, {}); }
Tensor mean(const Tensor& x) { return mean(x, {}); }
Tensor max(const Tensor& x) { return max(x, {}); }
Tensor min(const Tensor& x) { return min(x, {}); }
Tensor var(const Tensor& x) { return var(x, {}); }
Tensor norm(const Tensor& x) { return norm(x, {}); }

Tensor argmax(const Tensor& x) { return raw::argmax(raw::reshape(x, {-1}), 0); }
Tensor argmin(const Tensor& x) { return raw::argmin(raw::reshape(x, {-1}), 0); }
Tensor argmax(const Tensor& x, std::int64_t dim, bool keepdim) { return raw::argmax(x, dim, keepdim); }
Tensor argmin(const Tensor& x, std::int64_t dim, bool keepdim) { return raw::argmin(x, dim, keepdim); }

namespace {

// The gradient of a cumulative sum is one from the other end.
Tensor cumulate(const Tensor& x, std::int64_t dim, bool reverse) {
  return record("cumsum", raw::cumsum(x, dim, reverse), {x},
                [dim, reverse](const Tensor& grad, const Needs&) { return Gradients{cumulate(grad, dim, !reverse)}; });
}

}  // namespace

Tensor cumsum(const Tensor& x, std::int64_t dim) { return cumulate(x, dim, false); }

// dx = y (g - sum(g y))
Tensor softmax(const Tensor& x, std::int64_t dim) {
  return record("softmax", raw::softmax(x, dim), {x}, [dim](const Tensor& grad, const Needs&, const Tensor& y) {
    if (!autograd::grad_mode()) return Gradients{raw::softmax_backward(grad, y, dim)};
    return Gradients{mul(y, sub(grad, sum(mul(grad, y), {dim}, true)))};
  });
}

// dx = g - e^y sum(g)
Tensor log_softmax(const Tensor& x, std::int64_t dim) {
  return record("log_softmax", raw::log_softmax(x, dim), {x}, [dim](const Tensor& grad, const Needs&, const Tensor& y) {
    if (!autograd::grad_mode()) return Gradients{raw::log_softmax_backward(grad, y, dim)};
    return Gradients{sub(grad, mul(exp(y), sum(grad, {dim}, true)))};
  });
}

}  // namespace lockstep::inline LOCKSTEP_ABI
