// Rounding, remainders, angles, and the logic of bools and integers: forward and gradient side by side.
#include <limits>

#include "lockstep/autograd/ops/operations_internal.h"
#include "lockstep/base/check_internal.h"

namespace lockstep {

using raw::BinaryOp;
using raw::Step;

namespace {

// A step function: its gradient is 0.
Tensor stepped(const char* name, Step function, const Tensor& x) {
  require_defined(name, x);
  return record(name, raw::step(function, x), {x}, [shape = x.shape()](const Tensor& grad, const Needs&) {
    return Gradients{raw::zeros(shape, grad.options())};
  });
}

}  // namespace

Tensor floor(const Tensor& x) { return stepped("floor", Step::kFloor, x); }
Tensor ceil(const Tensor& x) { return stepped("ceil", Step::kCeil, x); }
Tensor round(const Tensor& x) { return stepped("round", Step::kRound, x); }
Tensor trunc(const Tensor& x) { return stepped("trunc", Step::kTrunc, x); }
Tensor sign(const Tensor& x) { return stepped("sign", Step::kSign, x); }

Tensor reciprocal(const Tensor& x) {
  return named("reciprocal", [&] { return 1 / x; });
}
Tensor square(const Tensor& x) {
  return named("square", [&] { return pow(x, 2); });
}

namespace {

// a - b q with an integer q, which is constant between the jumps: d/da = 1, d/db = -q.
Tensor remainder_of(const char* name, BinaryOp function, Tensor (*quotient)(const Tensor& a, const Tensor& b),
                    const Tensor& a, const Tensor& b) {
  require_defined(name, a, "a", b, "b");
  return record(name, raw::binary_op(function, a, b), {a, b},
                [quotient, a_shape = a.shape(), b_shape = b.shape(), a = Saved(a, requires_grad(b)),
                 b = Saved(b, requires_grad(b))](const Tensor& grad, const Needs& needs) {
                  Gradients gradients{needs[0] ? sum_to(grad, a_shape) : Tensor(), Tensor()};
                  if (needs[1]) gradients[1] = sum_to(neg(mul(grad, quotient(*a, *b))), b_shape);
                  return gradients;
                });
}

}  // namespace

Tensor remainder(const Tensor& a, const Tensor& b) {
  return remainder_of(
      "remainder", BinaryOp::kRemainder,
      [](const Tensor& a, const Tensor& b) { return raw::binary_op(BinaryOp::kFloorDivide, a, b); }, a, b);
}
Tensor fmod(const Tensor& a, const Tensor& b) {
  return remainder_of(
      "fmod", BinaryOp::kFmod, [](const Tensor& a, const Tensor& b) { return raw::step(Step::kTrunc, raw::div(a, b)); },
      a, b);
}

Tensor floor_divide(const Tensor& a, const Tensor& b) {
  require_defined("floor_divide", a, "a", b, "b");
  return record("floor_divide", raw::binary_op(BinaryOp::kFloorDivide, a, b), {a, b},
                [a_shape = a.shape(), b_shape = b.shape()](const Tensor& grad, const Needs&) {
                  return Gradients{raw::zeros(a_shape, grad.options()), raw::zeros(b_shape, grad.options())};
                });
}

// At (0, 0) the gradient is 0, as in PyTorch, and not 0 / 0.
Tensor atan2(const Tensor& a, const Tensor& b) {
  require_defined("atan2", a, "a", b, "b");
  return record("atan2", raw::binary_op(BinaryOp::kAtan2, a, b), {a, b},
                [a = Saved(a), b = Saved(b)](const Tensor& grad, const Needs& needs) {
                  const Tensor squares = add(mul(*a, *a), mul(*b, *b)), is_origin = squares == 0;
                  const Tensor scaled = where(is_origin, 0.0, div(grad, where(is_origin, 1.0, squares)));
                  return Gradients{needs[0] ? sum_to(mul(scaled, *b), a->shape()) : Tensor(),
                                   needs[1] ? sum_to(neg(mul(scaled, *a)), b->shape()) : Tensor()};
                });
}

Tensor remainder(const Tensor& a, const Scalar& b) { return remainder(a, raw::scalar_like("remainder", a, b)); }
Tensor remainder(const Scalar& a, const Tensor& b) { return remainder(raw::scalar_like("remainder", b, a), b); }
Tensor fmod(const Tensor& a, const Scalar& b) { return fmod(a, raw::scalar_like("fmod", a, b)); }
Tensor floor_divide(const Tensor& a, const Scalar& b) {
  return floor_divide(a, raw::scalar_like("floor_divide", a, b));
}

Tensor isnan(const Tensor& x) {
  require_defined("isnan", x);
  return x != x;
}
Tensor isinf(const Tensor& x) {
  require_defined("isinf", x);
  if (!x.is_floating_point()) return x != x;
  return raw::pointwise(raw::Pointwise::abs, x) == std::numeric_limits<double>::infinity();
}
Tensor isfinite(const Tensor& x) {
  require_defined("isfinite", x);
  if (!x.is_floating_point()) return x == x;
  return raw::sub(x, x) == 0;
}

Tensor logical_not(const Tensor& x) {
  require_defined("logical_not", x);
  return x.dtype() == kBool ? x == false : x == 0;
}

namespace {

// x as bools. A bool tensor is one: compared with 0 it would be promoted first.
Tensor truth(const Tensor& x) { return x.dtype() == kBool ? x : x != 0; }

}  // namespace

Tensor logical_and(const Tensor& a, const Tensor& b) {
  return named("logical_and", [&] { return raw::binary_op(BinaryOp::kAnd, truth(a), truth(b)); });
}
Tensor logical_or(const Tensor& a, const Tensor& b) {
  return named("logical_or", [&] { return raw::binary_op(BinaryOp::kOr, truth(a), truth(b)); });
}
Tensor logical_xor(const Tensor& a, const Tensor& b) {
  return named("logical_xor", [&] { return raw::binary_op(BinaryOp::kXor, truth(a), truth(b)); });
}

Tensor bitwise_not(const Tensor& x) {
  require_defined("bitwise_not", x);
  if (x.dtype() == kBool) return x == false;
  return named("bitwise_not", [&] { return bitwise_xor(x, -1); });
}
Tensor bitwise_and(const Tensor& a, const Tensor& b) {
  require_defined("bitwise_and", a, "a", b, "b");
  return raw::binary_op(BinaryOp::kAnd, a, b);
}
Tensor bitwise_or(const Tensor& a, const Tensor& b) {
  require_defined("bitwise_or", a, "a", b, "b");
  return raw::binary_op(BinaryOp::kOr, a, b);
}
Tensor bitwise_xor(const Tensor& a, const Tensor& b) {
  require_defined("bitwise_xor", a, "a", b, "b");
  return raw::binary_op(BinaryOp::kXor, a, b);
}
Tensor bitwise_and(const Tensor& a, const Scalar& b) { return bitwise_and(a, raw::scalar_like("bitwise_and", a, b)); }
Tensor bitwise_or(const Tensor& a, const Scalar& b) { return bitwise_or(a, raw::scalar_like("bitwise_or", a, b)); }
Tensor bitwise_xor(const Tensor& a, const Scalar& b) { return bitwise_xor(a, raw::scalar_like("bitwise_xor", a, b)); }

}  // namespace lockstep
