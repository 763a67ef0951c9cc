// Reductions and operations along a dimension. Inputs are brought to (outer, n, inner) first, so that the order of
// additions depends on the shape and the dimensions alone, not on strides.
#include <cmath>

#include "lockstep/tensor/ops/wrappers_internal.h"

namespace lockstep::raw {

namespace {

// x laid out so that the reduced dimensions are one block, and the shape of the result.
struct Plan {
  Tensor input;
  Rows rows;
  Shape shape;
};

unsigned dims_mask(const char* op, const Tensor& x, const Shape& dims) {
  if (dims.empty()) return (1u << x.dim()) - 1u;
  unsigned mask = 0;
  for (std::int64_t dim : dims) {
    const unsigned bit = 1u << wrap_dim(op, dim, x.dim());
    LOCKSTEP_CHECK(!(mask & bit), "{}: a dimension appears twice in {}", op, dims.to_string());
    mask |= bit;
  }
  return mask;
}

Plan plan(const char* op, const Tensor& x, const Shape& dims, bool keepdim) {
  const unsigned mask = dims_mask(op, x, dims);
  Plan out;
  Shape order, reduced;
  bool block_ended = false, block = true, started = false;
  for (int d = 0; d < x.dim(); ++d) {
    const std::int64_t size = x.shape()[at(d)];
    if (mask >> d & 1u) {
      block = block && !block_ended;
      started = true;
      reduced.push_back(d);
      out.rows.n *= size;
      if (keepdim) out.shape.push_back(1);
    } else {
      block_ended = block_ended || started;
      order.push_back(d);
      (started ? out.rows.inner : out.rows.outer) *= size;
      out.shape.push_back(size);
    }
  }
  if (block) {
    out.input = contiguous(x);
  } else {  // reduced dimensions that are not adjacent are moved to the end
    for (std::int64_t d : reduced) order.push_back(d);
    out.input = contiguous(permute(x, order));
    out.rows.outer *= out.rows.inner;
    out.rows.inner = 1;
  }
  return out;
}

// The result of a kernel that picks one element of each row: its value or its position.
template <class Out>
Tensor pick(const char* op, const Tensor& x, const Shape& dims, bool keepdim, DType out_dtype,
            void (*KernelTable::*kernel)(const void*, Out*, const Rows&, DType)) {
  if (is_half(x.dtype())) {
    const DType wide_out = out_dtype == x.dtype() ? kFloat32 : out_dtype;
    return to(pick(op, widened(x), dims, keepdim, wide_out, kernel), out_dtype);
  }
  const Plan p = plan(op, x, dims, keepdim);
  LOCKSTEP_CHECK(p.rows.n > 0 || p.rows.outer * p.rows.inner == 0, "{}: no elements to reduce in {}", op, describe(x));
  Tensor out = empty(p.shape, {.dtype = out_dtype, .device = x.device()});
  Out* const to = static_cast<Out*>(out.raw_data());
  if (out.numel() > 0) (kernels(x.device()).*kernel)(p.input.raw_data(), to, p.rows, x.dtype());
  return out;
}

}  // namespace

Tensor sum(const Tensor& x, const Shape& dims, bool keepdim) {
  if (is_half(x.dtype())) return to(sum(widened(x), dims, keepdim), x.dtype());
  const Plan p = plan("sum", x, dims, keepdim);
  Tensor out = empty(p.shape, {.dtype = x.is_floating_point() ? x.dtype() : kInt64, .device = x.device()});
  if (out.numel() > 0) kernels(x.device()).sum(p.input.raw_data(), out.raw_data(), p.rows, x.dtype(), 1.0);
  return out;
}

void sum_out(const Tensor& x, const Shape& dims, bool keepdim, const Tensor& out) {
  require_same("sum", x, out);
  const Plan p = plan("sum", x, dims, keepdim);
  LOCKSTEP_CHECK(p.shape == out.shape() && out.is_contiguous(), "sum: the result has shape {}, the output is {}",
                 p.shape.to_string(), describe(out));
  if (is_half(x.dtype()) || !x.is_floating_point()) return copy(sum(x, dims, keepdim), out);
  if (out.numel() > 0) kernels(x.device()).sum(p.input.raw_data(), out.raw_data(), p.rows, x.dtype(), 1.0);
}

Tensor mean(const Tensor& x, const Shape& dims, bool keepdim) {
  require_float("mean", x);
  const Plan p = plan("mean", x, dims, keepdim);
  Tensor out = empty(p.shape, x.options());
  // The mean of no elements is 0 * infinity: NaN, as in PyTorch.
  if (out.numel() > 0)
    kernels(x.device()).sum(p.input.raw_data(), out.raw_data(), p.rows, x.dtype(), 1.0 / static_cast<double>(p.rows.n));
  return out;
}

Tensor prod(const Tensor& x, std::int64_t dim, bool keepdim) {
  const Plan p = plan("prod", x, {dim}, keepdim);
  Tensor out = empty(p.shape, x.options());
  if (out.numel() > 0) kernels(x.device()).prod(p.input.raw_data(), out.raw_data(), p.rows, x.dtype());
  return out;
}

Tensor max(const Tensor& x, const Shape& dims, bool keepdim, const char* op) {
  return pick(op, x, dims, keepdim, x.dtype(), &KernelTable::max);
}
Tensor min(const Tensor& x, const Shape& dims, bool keepdim, const char* op) {
  return pick(op, x, dims, keepdim, x.dtype(), &KernelTable::min);
}

Tensor argmax(const Tensor& x, std::int64_t dim, bool keepdim, const char* op) {
  return pick(op, x, {dim}, keepdim, kInt64, &KernelTable::argmax);
}
Tensor argmin(const Tensor& x, std::int64_t dim, bool keepdim, const char* op) {
  return pick(op, x, {dim}, keepdim, kInt64, &KernelTable::argmin);
}

Tensor var(const Tensor& x, const Shape& dims, bool keepdim, std::int64_t correction) {
  require_float("var", x);
  const Plan p = plan("var", x, dims, keepdim);
  Tensor center = empty(p.shape, x.options()), out = empty(p.shape, x.options());
  if (out.numel() == 0) return out;
  const KernelTable& table = kernels(x.device());
  table.sum(p.input.raw_data(), center.raw_data(), p.rows, x.dtype(), 1.0 / static_cast<double>(p.rows.n));
  const double divisor = static_cast<double>(std::max<std::int64_t>(p.rows.n - correction, 0));
  table.sum_squares(p.input.raw_data(), center.raw_data(), out.raw_data(), p.rows, x.dtype(), 1.0 / divisor);
  return out;
}

Tensor norm(const Tensor& x, const Shape& dims, bool keepdim) {
  require_float("norm", x);
  const Plan p = plan("norm", x, dims, keepdim);
  Tensor out = empty(p.shape, x.options());
  if (out.numel() == 0) return out;
  kernels(x.device()).sum_squares(p.input.raw_data(), nullptr, out.raw_data(), p.rows, x.dtype(), 1.0);
  kernels(x.device()).sqrt(make_loop<2>(out.shape(), {&out, &out}), x.dtype(), {});
  return out;
}

Tensor p_norm(const Tensor& x, double p, const Shape& dims, bool keepdim) {
  const Tensor powers = pointwise(Pointwise::pow_scalar, pointwise(Pointwise::abs, x), {p});
  return pointwise(Pointwise::pow_scalar, sum(powers, dims, keepdim), {1 / p});
}

Tensor cumsum(const Tensor& x, std::int64_t dim, bool reverse) {
  if (is_half(x.dtype())) return to(cumsum(widened(x), dim, reverse), x.dtype());
  const Tensor input = contiguous(x.is_floating_point() ? x : to(x, kInt64));
  Tensor out = empty_like(input);
  const int d = wrap_dim("cumsum", dim, x.dim());
  if (out.numel() > 0)
    kernels(x.device()).cumsum(input.raw_data(), out.raw_data(), rows_along(input, d), input.dtype(), reverse);
  return out;
}

namespace {

Tensor softmax(const char* op, const Tensor& x, std::int64_t dim, bool log) {
  require_float(op, x);
  const Tensor input = contiguous(x);
  Tensor out = empty_like(input);
  const int d = wrap_dim(op, dim, x.dim());
  if (out.numel() > 0)
    kernels(x.device()).softmax(input.raw_data(), out.raw_data(), rows_along(input, d), x.dtype(), log);
  return out;
}

Tensor softmax_backward(const char* op, const Tensor& grad, const Tensor& y, std::int64_t dim, bool log) {
  require_same(op, grad, y);
  const Tensor g = contiguous(grad), values = contiguous(y);
  Tensor out = empty_like(values);
  const int d = wrap_dim(op, dim, y.dim());
  if (out.numel() > 0)
    kernels(y.device())
        .softmax_backward(g.raw_data(), values.raw_data(), out.raw_data(), rows_along(y, d), y.dtype(), log);
  return out;
}

}  // namespace

Tensor softmax(const Tensor& x, std::int64_t dim) { return softmax("softmax", x, dim, false); }
Tensor log_softmax(const Tensor& x, std::int64_t dim) { return softmax("log_softmax", x, dim, true); }
Tensor softmax_backward(const Tensor& grad, const Tensor& y, std::int64_t dim) {
  return softmax_backward("softmax", grad, y, dim, false);
}
Tensor log_softmax_backward(const Tensor& grad, const Tensor& y, std::int64_t dim) {
  return softmax_backward("log_softmax", grad, y, dim, true);
}

Tensor logsumexp(const Tensor& x, const Shape& dims, bool keepdim) {
  require_float("logsumexp", x);
  if (x.numel() == 0) return full(plan("logsumexp", x, dims, keepdim).shape, -INFINITY, x.options());  // log(0)
  const Tensor highest = max(x, dims, true);
  // An infinite maximum is the result itself; shifting by it would make NaN.
  const Tensor finite = compare(Compare::kLess, pointwise(Pointwise::abs, highest), full({}, INFINITY, x.options()));
  const Tensor shift = where(finite, highest, zeros({}, x.options()));
  const Tensor total = sum(pointwise(Pointwise::exp, sub(x, shift)), dims, true);
  const Tensor out = add(pointwise(Pointwise::log, total), shift);
  return keepdim ? out : reshape(out, plan("logsumexp", x, dims, false).shape);
}

bool equal(const Tensor& a, const Tensor& b) {
  require_same_device("equal", a, b);
  if (a.shape() != b.shape()) return false;
  if (a.numel() == 0) return true;
  const Tensor same = compare(Compare::kEqual, widened(a), widened(b));
  return min(same).item().to_double() != 0;
}

bool allclose(const Tensor& a, const Tensor& b, double rtol, double atol, bool equal_nan) {
  require_same("allclose", a, b);
  const Tensor x = to(a, kFloat64), y = to(b, kFloat64);
  if (broadcast("allclose", a, b).numel() == 0) return true;
  const Tensor difference = pointwise(Pointwise::abs, sub(x, y));
  const Tensor bound = add(mul(pointwise(Pointwise::abs, y), full({}, rtol, y.options())), full({}, atol, y.options()));
  // Equal infinities are close although their difference is NaN.
  const Tensor close = compare(Compare::kLessEqual, difference, bound);
  Tensor same = compare(Compare::kEqual, x, y);
  if (equal_nan) same = maximum(same, mul(compare(Compare::kNotEqual, x, x), compare(Compare::kNotEqual, y, y)));
  const Tensor finite = compare(Compare::kLess, bound, full({}, INFINITY, y.options()));
  return min(maximum(mul(close, finite), same)).item().to_double() != 0;
}

}  // namespace lockstep::raw
