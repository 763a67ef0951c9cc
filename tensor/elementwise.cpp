// Elementwise operations with several operands: promotion and broadcasting happen here.
#include "lockstep/tensor/wrappers_internal.h"

namespace lockstep::inline LOCKSTEP_ABI::raw {

namespace {

// A 0-d operand counts as a number beside a tensor with dimensions: it promotes only across categories (PyTorch's rule).
DType result_dtype(const Tensor& a, const Tensor& b) {
  if (a.dtype() == b.dtype()) return a.dtype();
  const auto category = [](DType d) { return d == kBool ? 0 : lockstep::is_floating_point(d) ? 2 : 1; };
  if (a.dim() > 0 && b.dim() == 0 && category(a.dtype()) >= category(b.dtype())) return a.dtype();
  if (b.dim() > 0 && a.dim() == 0 && category(b.dtype()) >= category(a.dtype())) return b.dtype();
  return promote(a.dtype(), b.dtype());
}

using BinaryKernel = void (*KernelTable::*)(const Loop<3>&, DType);

template <class Call>
Tensor binary(const char* op, const Tensor& a, const Tensor& b, DType dtype, std::optional<DType> out_dtype,
              Call call) {
  const Tensor x = to(a, dtype), y = to(b, dtype);
  require_computable(op, x);
  Tensor out = empty(broadcast(op, a, b), {.dtype = out_dtype.value_or(dtype), .device = a.device()});
  if (out.numel() > 0) call(make_loop<3>(out.shape(), {&out, &x, &y}));
  return out;
}

// Two operands of one dtype and shape, contiguous: what training steps mostly have, without the general machinery.
bool alike(const Tensor& a, const Tensor& b) {
  const TensorImpl &x = a.impl(), &y = b.impl();
  return x.dtype == y.dtype && x.shape == y.shape && x.contiguous && y.contiguous;
}

Tensor plain(const char* op, const Tensor& a, const Tensor& b, BinaryKernel kernel) {
  require_same_device(op, a, b);
  const DType dtype = result_dtype(a, b);
  const KernelTable& table = kernels(a.device());
  return binary(op, a, b, dtype, {}, [&](const Loop<3>& loop) { (table.*kernel)(loop, dtype); });
}

}  // namespace

Tensor scalar_like(const Tensor& like, const Scalar& number) {
  return full({}, number, {.dtype = promote(like.dtype(), number), .device = like.device()});
}

namespace {

Scalar negative(const Scalar& x) { return x.is_floating_point() ? Scalar(-x.to_double()) : Scalar(-x.to_int64()); }

// a + alpha b, under the name of the operation that asked for it.
Tensor add_scaled(const char* op, const Tensor& a, const Tensor& b, const Scalar& alpha) {
  require_same_device(op, a, b);
  const KernelTable& table = kernels(a.device());
  if (alike(a, b) && a.dtype() >= kFloat32) {
    Tensor out = empty_like(a);
    table.add(make_loop<3>(a.shape(), {&out, &a, &b}), a.dtype(), alpha);
    return out;
  }
  DType dtype = result_dtype(a, b);
  if (alpha.is_floating_point()) {
    LOCKSTEP_CHECK(lockstep::is_floating_point(dtype), "{}: alpha {} is a fraction, the operands are {} and {}", op,
                   alpha.to_double(), describe(a), describe(b));
  }
  if (dtype == kBool) {  // true + true is true
    const Tensor sum = binary(op, a, b, kUInt8, {}, [&](const Loop<3>& loop) { table.add(loop, kUInt8, alpha); });
    return to(sum, kBool);
  }
  return binary(op, a, b, dtype, {}, [&](const Loop<3>& loop) { table.add(loop, dtype, alpha); });
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b, const Scalar& alpha) { return add_scaled("add", a, b, alpha); }

Tensor sub(const Tensor& a, const Tensor& b, const Scalar& alpha) {
  LOCKSTEP_CHECK(a.dtype() != kBool || b.dtype() != kBool,
                 "sub: bool tensors do not subtract; convert one with to(kInt64)");
  return add_scaled("sub", a, b, negative(alpha));
}

Tensor mul(const Tensor& a, const Tensor& b) { return plain("mul", a, b, &KernelTable::mul); }

Tensor div(const Tensor& a, const Tensor& b) {
  require_same_device("div", a, b);
  DType dtype = result_dtype(a, b);
  if (!lockstep::is_floating_point(dtype)) dtype = kFloat32;
  const KernelTable& table = kernels(a.device());
  return binary("div", a, b, dtype, {}, [&](const Loop<3>& loop) { table.div(loop, dtype); });
}

Tensor pow(const Tensor& a, const Tensor& b) { return plain("pow", a, b, &KernelTable::pow); }
Tensor maximum(const Tensor& a, const Tensor& b) { return plain("maximum", a, b, &KernelTable::maximum); }
Tensor minimum(const Tensor& a, const Tensor& b) { return plain("minimum", a, b, &KernelTable::minimum); }

Tensor compare(Compare relation, const Tensor& a, const Tensor& b) {
  require_same_device("compare", a, b);
  const DType dtype = result_dtype(a, b);
  const KernelTable& table = kernels(a.device());
  return binary("compare", a, b, dtype, kBool, [&](const Loop<3>& loop) { table.compare(loop, dtype, relation); });
}

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  require_same_device("where", condition, a);
  require_same_device("where", a, b);
  LOCKSTEP_CHECK(condition.dtype() == kBool, "where: the condition must be bool, got {}; compare it, or use to(kBool)",
                 describe(condition));
  const DType dtype = result_dtype(a, b);
  const Tensor x = to(a, dtype), y = to(b, dtype);
  const Shape shape = broadcast_shapes("where", condition.shape(), broadcast("where", a, b));
  Tensor out = empty(shape, {.dtype = dtype, .device = a.device()});
  if (out.numel() > 0) kernels(a.device()).where(make_loop<4>(shape, {&out, &condition, &x, &y}), dtype);
  return out;
}

namespace {

// The right operand of an in-place operation, in the dtype of the left one.
Tensor in_place_operand(const char* op, const Tensor& a, const Tensor& b) {
  require_same_device(op, a, b);
  require_computable(op, a);
  require_broadcast_to(op, b, a);
  const DType result = result_dtype(a, b);
  LOCKSTEP_CHECK(lockstep::is_floating_point(a.dtype()) || !lockstep::is_floating_point(result),
                 "{}: a result of {} does not fit into {}", op, lockstep::name(result), describe(a));
  return apart(to(b, a.dtype()), a);
}

void add_scaled_(const char* op, const Tensor& a, const Tensor& b, const Scalar& alpha) {
  const Tensor operand = in_place_operand(op, a, b);
  if (a.numel() > 0) kernels(a.device()).add(make_loop<3>(a.shape(), {&a, &a, &operand}), a.dtype(), alpha);
}

}  // namespace

void add_(const Tensor& a, const Tensor& b, const Scalar& alpha) { add_scaled_("add_", a, b, alpha); }
void sub_(const Tensor& a, const Tensor& b, const Scalar& alpha) { add_scaled_("sub_", a, b, negative(alpha)); }

void mul_(const Tensor& a, const Tensor& b) {
  const Tensor operand = in_place_operand("mul_", a, b);
  if (a.numel() > 0) kernels(a.device()).mul(make_loop<3>(a.shape(), {&a, &a, &operand}), a.dtype());
}

void div_(const Tensor& a, const Tensor& b) {
  LOCKSTEP_CHECK(a.is_floating_point(), "div_: the quotient does not fit into {}", describe(a));
  const Tensor operand = in_place_operand("div_", a, b);
  if (a.numel() > 0) kernels(a.device()).div(make_loop<3>(a.shape(), {&a, &a, &operand}), a.dtype());
}

}  // namespace lockstep::inline LOCKSTEP_ABI::raw
