// Attention: operands, results and workspace of the kernels.
#include "lockstep/tensor/ops/attention_internal.h"

#include <algorithm>

#include "lockstep/base/threads.h"
#include "lockstep/tensor/ops/wrappers_internal.h"

namespace lockstep::raw {

namespace {

AttentionOperand attention_operand(const Tensor& x) {
  const int d = x.dim();
  AttentionOperand out{
      .data = x.raw_data(), .row = x.strides()[at(d - 2)], .column = x.strides()[at(d - 1)], .batch = {}};
  for (int i = 0; i < d - 2; ++i) out.batch.push_back(x.strides()[at(i)]);
  return out;
}

// Kernels read rows without gaps.
bool has_dense_rows(const Tensor& x) { return x.shape().back() <= 1 || x.strides().back() == 1; }

// A new tensor with x's leading dimensions and the last two of the result. If x is (batch, time, heads, dim)
// transposed, so is the result: merging its heads again is a view.
Tensor empty_in_order_of(const Tensor& x, std::int64_t rows, std::int64_t columns) {
  Shape shape = x.shape();
  const std::size_t last = shape.size() - 1;
  shape[last - 1] = rows, shape[last] = columns;
  if (last < 2 || shape[last - 2] == 1 || x.strides()[last - 2] >= x.strides()[last - 1])
    return empty(shape, x.options());
  std::swap(shape[last - 2], shape[last - 1]);
  return transpose(empty(shape, x.options()), -3, -2);
}

Attention attention_geometry(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                             const AttentionSetting& setting) {
  Attention a{};
  a.time = q.size(-2), a.time_k = k.size(-2), a.dim = q.size(-1), a.dim_v = v.size(-1);
  for (int i = 0; i < q.dim() - 2; ++i) a.batch.push_back(q.shape()[at(i)]);
  a.count = a.batch.numel();
  a.scale = setting.scale, a.causal = setting.causal, a.keep = setting.keep, a.position = setting.position;
  a.q = attention_operand(q), a.k = attention_operand(k), a.v = attention_operand(v);
  if (mask.defined()) a.mask = attention_operand(mask), a.bool_mask = mask.dtype() == kBool;
  return a;
}

// Memory for `units` of work on a CPU, `room` elements for each of the shares that run at once.
Tensor attention_workspace(Attention& a, std::int64_t units, std::int64_t room, const Tensor& like) {
  if (!like.device().is_cpu()) return {};
  a.shares = std::min<std::int64_t>(units, num_threads());
  const Tensor memory = empty({a.shares * room}, like.options());
  a.workspace = memory.raw_data();
  return memory;
}

// The kernels of CPUs have no f16 and bf16.
bool needs_widening(const Tensor& q) { return is_half(q.dtype()) && q.device().is_cpu(); }

}  // namespace

Attended attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                   const AttentionSetting& setting) {
  if (needs_widening(q)) {
    Attended result = attention(widened(q), widened(k), widened(v), widened(mask), setting);
    result.out = to(result.out, q.dtype());
    return result;
  }
  const Dense dense_q(q, has_dense_rows(q)), dense_k(k, has_dense_rows(k)), dense_v(v, has_dense_rows(v));
  Attention a = attention_geometry(*dense_q, *dense_k, *dense_v, mask, setting);
  TensorOptions of_sums = q.options();
  if (is_half(q.dtype())) of_sums.dtype = kFloat32;
  Attended result{.out = empty_in_order_of(q, a.time, a.dim_v), .log_sums = empty({a.count, a.time}, of_sums)};
  if (result.out.numel() == 0) return result;
  a.out = attention_operand(result.out), a.log_sums = result.log_sums.raw_data();
  const std::int64_t tiles = (a.time + kAttentionTile - 1) / kAttentionTile;
  const Tensor memory = attention_workspace(a, a.count * tiles, attention_room(a, false), q);
  kernels(q.device()).attention(a, q.dtype());
  return result;
}

AttentionGradients attention_backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                                      const Tensor& mask, const Attended& forward, const AttentionSetting& setting,
                                      bool needs_q, bool needs_k, bool needs_v) {
  if (needs_widening(q)) {
    return attention_backward(widened(grad), widened(q), widened(k), widened(v), widened(mask),
                              {widened(forward.out), forward.log_sums}, setting, needs_q, needs_k, needs_v);
  }
  const Dense dense_q(q, has_dense_rows(q)), dense_k(k, has_dense_rows(k)), dense_v(v, has_dense_rows(v)),
      dense_grad(grad, has_dense_rows(grad));
  Attention a = attention_geometry(*dense_q, *dense_k, *dense_v, mask, setting);
  const auto gradient_of = [](const Tensor& x, bool needed) {
    return needed ? empty_in_order_of(x, x.size(-2), x.size(-1)) : Tensor();
  };
  AttentionGradients result{gradient_of(q, needs_q), gradient_of(k, needs_k), gradient_of(v, needs_v)};
  if (forward.out.numel() == 0) {  // forward has computed nothing; the result depends on no input
    for (const Tensor* gradient : {&result.q, &result.k, &result.v}) {
      if (gradient->defined()) fill(*gradient, 0);
    }
    return result;
  }
  a.out = attention_operand(forward.out), a.log_sums = forward.log_sums.raw_data(),
  a.grad = attention_operand(*dense_grad);
  if (needs_q) a.grad_q = attention_operand(result.q);
  if (needs_k) a.grad_k = attention_operand(result.k);
  if (needs_v) a.grad_v = attention_operand(result.v);
  const Tensor memory = attention_workspace(a, a.count, attention_room(a, true), q);
  kernels(q.device()).attention_backward(a, q.dtype());
  return result;
}

}  // namespace lockstep::raw
