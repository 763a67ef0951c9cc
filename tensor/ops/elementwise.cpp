// Elementwise operations with several operands, with promotion and broadcasting.
#include <algorithm>
#include <limits>

#include "lockstep/tensor/half_internal.h"
#include "lockstep/tensor/ops/wrappers_internal.h"

namespace lockstep::raw {

namespace {

// Booleans, integers, floats.
int category(DType dtype) { return dtype == kBool ? 0 : lockstep::is_floating_point(dtype) ? 2 : 1; }

// A 0-d operand counts as a number next to a tensor with dimensions: it promotes only across categories (PyTorch's
// rule).
DType result_dtype(const Tensor& a, const Tensor& b) {
  if (a.dtype() == b.dtype()) return a.dtype();
  if (a.dim() > 0 && b.dim() == 0 && category(a.dtype()) >= category(b.dtype())) return a.dtype();
  if (b.dim() > 0 && a.dim() == 0 && category(b.dtype()) >= category(a.dtype())) return b.dtype();
  return promote(a.dtype(), b.dtype());
}

using BinaryKernel = void (*KernelTable::*)(const Loop<3>&, DType);

// An operand of an operation with a result of `dtype`. For f16 and bf16 it is rounded to `dtype`, as in PyTorch, and
// then converted to f32; a 0-d operand of arithmetic is not rounded.
Tensor operand(const Tensor& x, DType dtype, bool rounds = false) {
  return is_half(dtype) ? to(rounds || x.dim() > 0 ? to(x, dtype) : x, kFloat32) : to(x, dtype);
}

// The result of call(loop, dtype of the kernel), which is converted to `dtype`, or has `out_dtype`.
template <class Call>
Tensor binary(const char* op, const Tensor& a, const Tensor& b, DType dtype, std::optional<DType> out_dtype,
              Call call) {
  const bool compares = out_dtype.has_value();
  const Tensor x = in_row_order(operand(a, dtype, compares)), y = in_row_order(operand(b, dtype, compares));
  const DType computed = x.dtype();
  Tensor out = empty(broadcast(op, a, b), {.dtype = out_dtype.value_or(computed), .device = a.device()});
  if (out.numel() > 0) call(make_loop<3>(out.shape(), {&out, &x, &y}), computed);
  if (!out_dtype && computed != dtype) [[unlikely]]
    return to(out, dtype);
  return out;
}

// True for contiguous operands of one dtype and shape, the usual case in training, which needs no general loop.
bool alike(const Tensor& a, const Tensor& b) {
  const TensorImpl &x = a.impl(), &y = b.impl();
  return x.dtype == y.dtype && x.shape == y.shape && x.contiguous && y.contiguous;
}

Tensor plain(const char* op, const Tensor& a, const Tensor& b, BinaryKernel kernel) {
  require_same_device(op, a, b);
  const DType dtype = result_dtype(a, b);
  const KernelTable& table = kernels(a.device());
  return binary(op, a, b, dtype, {}, [&](const Loop<3>& loop, DType computed) { (table.*kernel)(loop, computed); });
}

}  // namespace

Tensor scalar_like(const char* op, const Tensor& like, const Scalar& number) {
  require_defined(op, like);
  const DType dtype = number.is_bool() ? kBool : promote(like.dtype(), number);
  const Tensor out = empty({}, {.dtype = dtype, .device = like.device()});
  kernels(like.device()).fill(make_loop<1>(Shape(), {&out}), dtype, number);
  return out;
}

namespace {

// Throws InvalidArgument for a floating-point alpha of integers, a bool alpha of numbers, and an alpha that the dtype
// of the result cannot hold.
void require_alpha(const char* op, const Tensor& a, const Tensor& b, DType result, const Scalar& alpha) {
  LOCKSTEP_CHECK(!alpha.is_bool() || result == kBool, "{}: alpha is a bool, the operands are {} and {}; give a number",
                 op, describe(a), describe(b));
  LOCKSTEP_CHECK(!alpha.is_floating_point() || lockstep::is_floating_point(result),
                 "{}: alpha is {}, a floating-point number, the operands are {} and {}; give an integer, or convert an "
                 "operand with to(kFloat32)",
                 op, alpha.to_double(), describe(a), describe(b));
  require_fits(op, alpha, result);
}

// Throws InvalidArgument for bool operands, as PyTorch does.
void require_subtractable(const char* op, const Tensor& a, const Tensor& b) {
  LOCKSTEP_CHECK(a.dtype() != kBool && b.dtype() != kBool,
                 "{}: bool tensors cannot be subtracted: {} and {}; compare with == or !=, or convert with to(kInt64)",
                 op, describe(a), describe(b));
}

// A bool alpha stays bool, which require_alpha rejects.
Scalar negative(const Scalar& x) {
  if (x.is_bool()) return x;
  return x.is_floating_point() ? Scalar(-x.to_double()) : Scalar(-x.to_int64());
}

// The alpha of bool operands: true if the second operand is added.
Scalar truth(const Scalar& alpha) { return alpha.to_double() != 0; }

// alpha in the dtype of the result. f16 and bf16 round it, as in PyTorch.
Scalar rounded(const Scalar& alpha, DType dtype) {
  const auto number = static_cast<float>(alpha.to_double());
  if (dtype == kFloat16) return to_float(to_half(number));
  return dtype == kBFloat16 ? Scalar(to_float(to_bfloat16(number))) : alpha;
}

// a + alpha b, with the caller's operation `op` in messages.
Tensor add_scaled(const char* op, const Tensor& a, const Tensor& b, const Scalar& alpha) {
  require_same_device(op, a, b);
  const KernelTable& table = kernels(a.device());
  if (alike(a, b) && a.dtype() >= kFloat32 && !alpha.is_bool()) {
    Tensor out = empty_like(a);
    table.add(make_loop<3>(a.shape(), {&out, &a, &b}), a.dtype(), alpha);
    return out;
  }
  const DType dtype = result_dtype(a, b);
  require_alpha(op, a, b, dtype, alpha);
  if (dtype == kBool) {  // true + true is true
    const Tensor sum =
        binary(op, a, b, kUInt8, {}, [&](const Loop<3>& loop, DType) { table.add(loop, kUInt8, truth(alpha)); });
    return to(sum, kBool);
  }
  const Scalar factor = rounded(alpha, dtype);
  return binary(op, a, b, dtype, {}, [&](const Loop<3>& loop, DType computed) { table.add(loop, computed, factor); });
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b, const Scalar& alpha) { return add_scaled("add", a, b, alpha); }

Tensor sub(const Tensor& a, const Tensor& b, const Scalar& alpha) {
  require_subtractable("sub", a, b);
  return add_scaled("sub", a, b, negative(alpha));
}

Tensor mul(const Tensor& a, const Tensor& b) { return plain("mul", a, b, &KernelTable::mul); }

Tensor div(const Tensor& a, const Tensor& b) {
  require_same_device("div", a, b);
  DType dtype = result_dtype(a, b);
  if (!lockstep::is_floating_point(dtype)) dtype = kFloat32;
  const KernelTable& table = kernels(a.device());
  return binary("div", a, b, dtype, {}, [&](const Loop<3>& loop, DType computed) { table.div(loop, computed); });
}

Tensor pow(const Tensor& a, const Tensor& b) {
  LOCKSTEP_CHECK(a.dtype() != kBool || b.dtype() != kBool,
                 "pow: bool tensors are not supported: {} and {}; convert one with "
                 "to(kInt64)",
                 describe(a), describe(b));
  return plain("pow", a, b, &KernelTable::pow);
}
Tensor maximum(const Tensor& a, const Tensor& b) { return plain("maximum", a, b, &KernelTable::maximum); }
Tensor minimum(const Tensor& a, const Tensor& b) { return plain("minimum", a, b, &KernelTable::minimum); }

Tensor compare(Compare relation, const Tensor& a, const Tensor& b) {
  constexpr const char* kSymbols[] = {"==", "!=", "<", "<=", ">", ">="};
  const char* const op = kSymbols[static_cast<std::size_t>(relation)];
  require_same_device(op, a, b);
  const DType dtype = result_dtype(a, b);
  const KernelTable& table = kernels(a.device());
  return binary(op, a, b, dtype, kBool,
                [&](const Loop<3>& loop, DType computed) { table.compare(loop, computed, relation); });
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

Tensor step(Step function, const Tensor& x) {
  constexpr const char* kNames[] = {"floor", "ceil", "round", "trunc", "sign"};
  LOCKSTEP_CHECK(x.dtype() != kBool || function == Step::kSign,
                 "{}: bool tensors are not supported, got {}; convert with to(kInt64)",
                 kNames[static_cast<std::size_t>(function)], describe(x));
  if (x.dtype() == kBool || (!x.is_floating_point() && function != Step::kSign)) return clone(x);
  if (is_half(x.dtype())) return to(step(function, widened(x)), x.dtype());
  Tensor out = empty_like(x);
  kernels(x.device()).step_function(make_loop<2>(x.shape(), {&out, &x}), x.dtype(), function);
  return out;
}

Tensor binary_op(BinaryOp function, const Tensor& a, const Tensor& b) {
  constexpr const char* kNames[] = {"remainder",   "fmod",       "floor_divide", "atan2",
                                    "bitwise_and", "bitwise_or", "bitwise_xor"};
  const char* const op = kNames[static_cast<std::size_t>(function)];
  require_same_device(op, a, b);
  DType dtype = result_dtype(a, b);
  if (function >= BinaryOp::kAnd) {
    LOCKSTEP_CHECK(
        !lockstep::is_floating_point(dtype),
        "{}: needs bool or integer tensors, got {} and {}; compare with a number, or convert with to(kInt64)", op,
        describe(a), describe(b));
  } else if (function == BinaryOp::kAtan2) {
    if (!lockstep::is_floating_point(dtype)) dtype = kFloat32;
  } else {
    LOCKSTEP_CHECK(dtype != kBool, "{}: bool tensors are not supported: {} and {}; convert one with to(kInt64)", op,
                   describe(a), describe(b));
    if (!lockstep::is_floating_point(dtype) && b.device().is_cpu() && broadcast(op, a, b).numel() > 0)
      LOCKSTEP_CHECK(min(to(compare(Compare::kNotEqual, b, full({}, 0, b.options())), kInt32)).item().to_double() != 0,
                     "{}: an element of the integer divisor {} is 0; convert it with to(kFloat32) for infinity", op,
                     describe(b));
  }
  const KernelTable& table = kernels(a.device());
  return binary(op, a, b, dtype, {},
                [&](const Loop<3>& loop, DType computed) { table.binary_op(loop, computed, function); });
}

Tensor clamp_integers(const Tensor& x, const std::optional<Scalar>& lo, const std::optional<Scalar>& hi) {
  constexpr std::int64_t k32 = std::numeric_limits<std::int32_t>::max();
  const std::int64_t most = x.dtype() == kUInt8   ? 255
                            : x.dtype() == kInt32 ? k32
                                                  : std::numeric_limits<std::int64_t>::max();
  const std::int64_t least = x.dtype() == kUInt8 ? 0 : -most - 1;
  Tensor out = x;
  if (lo) {
    const std::int64_t limit = lo->to_int64();
    LOCKSTEP_CHECK(limit <= most, "clamp: the lower limit {} is above all numbers of {}; convert it with to(kInt64)",
                   limit, describe(x));
    out = maximum(out, full({}, std::max(limit, least), x.options()));
  }
  if (hi) {
    const std::int64_t limit = hi->to_int64();
    LOCKSTEP_CHECK(limit >= least, "clamp: the upper limit {} is below all numbers of {}; convert it with to(kInt64)",
                   limit, describe(x));
    out = minimum(out, full({}, std::min(limit, most), x.options()));
  }
  return out;
}

namespace {

// Throws InvalidArgument for a result of a higher category than a, which keeps its dtype.
void require_result_fits(const char* op, const Tensor& a, DType result) {
  LOCKSTEP_CHECK(
      category(result) <= category(a.dtype()),
      "{}: a result of {} does not fit into {}; use the function without _, or convert an operand with to(dtype)", op,
      lockstep::name(result), describe(a));
}

// Throws InvalidArgument unless b can change a in place.
void require_in_place(const char* op, const Tensor& a, const Tensor& b) {
  require_same_device(op, a, b);
  require_broadcast_to(op, b, a);
  require_result_fits(op, a, result_dtype(a, b));
}

// Calls call(loop over a, a and b, dtype of the kernel), which changes a. An a of f16 or bf16 is changed in f32, and
// rounded once.
template <class Call>
void change_in_place(const Tensor& a, const Tensor& b, Call call) {
  if (a.numel() == 0) return;
  if (!is_half(a.dtype())) {
    const Tensor own = apart(to(b, a.dtype()), a);
    return call(make_loop<3>(a.shape(), {&a, &a, &own}), a.dtype());
  }
  const Tensor sum = to(a, kFloat32), own = to(operand(b, result_dtype(a, b)), kFloat32);
  call(make_loop<3>(a.shape(), {&sum, &sum, &own}), kFloat32);
  copy(sum, a);
}

void add_scaled_(const char* op, const Tensor& a, const Tensor& b, const Scalar& alpha) {
  require_in_place(op, a, b);
  require_alpha(op, a, b, result_dtype(a, b), alpha);
  const KernelTable& table = kernels(a.device());
  change_in_place(a, b, [&](const Loop<3>& loop, DType dtype) {
    if (dtype != kBool)
      table.add(loop, dtype, rounded(alpha, result_dtype(a, b)));
    else if (alpha.to_double() != 0)  // true + true is true
      table.maximum(loop, kBool);
  });
}

}  // namespace

void add_(const Tensor& a, const Tensor& b, const Scalar& alpha) { add_scaled_("add_", a, b, alpha); }
void sub_(const Tensor& a, const Tensor& b, const Scalar& alpha) {
  require_subtractable("sub_", a, b);
  add_scaled_("sub_", a, b, negative(alpha));
}

void mul_(const Tensor& a, const Tensor& b) {
  require_in_place("mul_", a, b);
  change_in_place(a, b, [&](const Loop<3>& loop, DType dtype) { kernels(a.device()).mul(loop, dtype); });
}

void div_(const Tensor& a, const Tensor& b) {
  if (!a.is_floating_point()) require_result_fits("div_", a, kFloat32);  // a quotient of integers is f32
  require_in_place("div_", a, b);
  change_in_place(a, b, [&](const Loop<3>& loop, DType dtype) { kernels(a.device()).div(loop, dtype); });
}

}  // namespace lockstep::raw
