// The wrappers of pointwise.def.
#include "lockstep/tensor/ops/wrappers_internal.h"

namespace lockstep::raw {

namespace {

struct PointwiseEntry {
  const char* name;
  DTypeRule dtypes;
  void (*KernelTable::*value)(const Loop<2>&, DType, const PointwiseParams&);
  void (*KernelTable::*derivative)(const Loop<4>&, DType, const PointwiseParams&);
  void (*KernelTable::*second_derivative)(const Loop<3>&, DType, const PointwiseParams&);
};

constexpr PointwiseEntry kEntries[] = {
#define POINTWISE(name, functor, dtypes, low, high)                               \
  {#name, DTypeRule::dtypes, &KernelTable::name, &KernelTable::name##_derivative, \
   &KernelTable::name##_second_derivative},
#include "lockstep/tensor/ops/pointwise.def"
#undef POINTWISE
};

const PointwiseEntry& entry(Pointwise op) { return kEntries[static_cast<std::size_t>(op)]; }

// Whether f16 and bf16 must be converted to f32 for the kernel. On cuda devices kernels compute with f16 and bf16
// themselves, in f32, if all operands are contiguous and aligned for loads of 16 bytes: there memory limits the speed.
template <class... Operands>
bool needs_widening(const Tensor& x, const Operands&... others) {
  constexpr std::uintptr_t kLoad = 16;
  const auto is_ready = [&](const Tensor& t) {
    return t.is_contiguous() && reinterpret_cast<std::uintptr_t>(t.raw_data()) % kLoad == 0;
  };
  return is_half(x.dtype()) && !(x.device().is_cuda() && is_ready(x) && (is_ready(others) && ...));
}

}  // namespace

const char* name(Pointwise op) { return entry(op).name; }

Tensor pointwise(Pointwise op, const Tensor& x, const PointwiseParams& params) {
  if (!x.is_floating_point() && entry(op).dtypes == DTypeRule::kFloats) [[unlikely]]
    return pointwise(op, to(x, kFloat32), params);
  LOCKSTEP_CHECK(x.dtype() != kBool,
                 "{}: bool tensors are not supported, got {}; convert with to(kInt64), and for the "
                 "opposite compare with == false",
                 entry(op).name, describe(x));
  if (needs_widening(x)) return to(pointwise(op, widened(x), params), x.dtype());
  Tensor out = empty_like(x);
  const Tensor in = in_row_order(x);
  (kernels(x.device()).*entry(op).value)(make_loop<2>(x.shape(), {&out, &in}), x.dtype(), params);
  return out;
}

Tensor pointwise_derivative(Pointwise op, const Tensor& grad, const Tensor& x, const Tensor& y,
                            const PointwiseParams& params) {
  require_same(entry(op).name, grad, x);
  if (needs_widening(x, grad, y))
    return to(pointwise_derivative(op, widened(grad), widened(x), widened(y), params), x.dtype());
  Tensor out = empty_like(x);
  (kernels(x.device()).*entry(op).derivative)(make_loop<4>(x.shape(), {&out, &grad, &x, &y}), x.dtype(), params);
  return out;
}

Tensor pointwise_second_derivative(Pointwise op, const Tensor& grad, const Tensor& x, const PointwiseParams& params) {
  require_same(entry(op).name, grad, x);
  if (is_half(x.dtype())) return to(pointwise_second_derivative(op, widened(grad), widened(x), params), x.dtype());
  Tensor out = empty_like(x);
  (kernels(x.device()).*entry(op).second_derivative)(make_loop<3>(x.shape(), {&out, &grad, &x}), x.dtype(), params);
  return out;
}

}  // namespace lockstep::raw
