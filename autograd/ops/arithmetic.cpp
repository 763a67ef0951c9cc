// Arithmetic and comparisons: forward and gradient side by side.

#include "lockstep/autograd/ops/operations_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/tensor/half_dtypes_internal.h"

namespace lockstep {

namespace {

// The dimensions of x that broadcasting from `shape` repeated, to sum over.
Shape repeated_dims(const Tensor& x, const Shape& shape) {
  Shape dims;
  const int lead = x.dim() - shape.dim();
  for (int d = 0; d < x.dim(); ++d) {
    const auto own = static_cast<std::size_t>(d - lead);
    if (d < lead || (shape[own] == 1 && x.shape()[static_cast<std::size_t>(d)] != 1)) dims.push_back(d);
  }
  return dims;
}

}  // namespace

Tensor sum_to(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  const Shape dims = repeated_dims(x, shape);
  const Tensor reduced = dims.empty() ? x : sum(x, dims, true);
  return reduced.shape() == shape ? reduced : reduced.reshape(shape);
}

Tensor sum_to(const Tensor& x, const Shape& shape, const Needs& needs, std::size_t input) {
  const Shape dims = repeated_dims(x, shape);
  const int lead = x.dim() - shape.dim();
  if (dims.empty() || (lead != 0 && lead != dims.dim()))
    return sum_to(x, shape);  // needs.view() must not be called unless the view is then filled
  const Tensor view = needs.view(input);
  if (!view.defined()) return sum_to(x, shape);
  return sum(x.to(view.dtype()), dims, lead == 0, view);
}

Tensor add(const Tensor& a, const Tensor& b, const Scalar& alpha) {
  require_defined("add", a, "a", b, "b");
  return record("add", raw::add(a, b, alpha), {a, b},
                [a_shape = a.shape(), b_shape = b.shape(), alpha](const Tensor& grad, const Needs& needs) {
                  const Tensor by_b = !needs[1] || alpha.to_double() == 1 ? grad : mul(grad, alpha);
                  return Gradients{needs[0] ? sum_to(grad, a_shape) : Tensor(),
                                   needs[1] ? sum_to(by_b, b_shape, needs, 1) : Tensor()};
                });
}

Tensor sub(const Tensor& a, const Tensor& b, const Scalar& alpha) {
  require_defined("sub", a, "a", b, "b");
  return record("sub", raw::sub(a, b, alpha), {a, b},
                [a_shape = a.shape(), b_shape = b.shape(), alpha](const Tensor& grad, const Needs& needs) {
                  return Gradients{needs[0] ? sum_to(grad, a_shape) : Tensor(),
                                   needs[1] ? sum_to(mul(grad, Scalar(-alpha.to_double())), b_shape) : Tensor()};
                });
}

Tensor mul(const Tensor& a, const Tensor& b) {
  require_defined("mul", a, "a", b, "b");
  return record("mul", raw::mul(a, b), {a, b},
                [a_shape = a.shape(), b_shape = b.shape(), a = Saved(a, requires_grad(b)),
                 b = Saved(b, requires_grad(a))](const Tensor& grad, const Needs& needs) {
                  return Gradients{needs[0] ? sum_to(mul(grad, *b), a_shape) : Tensor(),
                                   needs[1] ? sum_to(mul(grad, *a), b_shape) : Tensor()};
                });
}

Tensor div(const Tensor& a, const Tensor& b) {
  require_defined("div", a, "a", b, "b");
  return record("div", raw::div(a, b), {a, b},
                [a_shape = a.shape(), b = Saved(b)](const Tensor& grad, const Needs& needs, const Tensor& out) {
                  const Tensor by_b = div(grad, *b);
                  return Gradients{needs[0] ? sum_to(by_b, a_shape) : Tensor(),
                                   needs[1] ? sum_to(neg(mul(by_b, out)), b->shape()) : Tensor()};
                });
}

// d/da = p a^(p-1), d/dp = a^p log a. At a = 0, d/dp is 0 for p >= 0 (the limit, except for p = 0), -inf for p < 0.
Tensor pow(const Tensor& base, const Tensor& exponent) {
  require_defined("pow", base, "base", exponent, "exponent");
  return record(
      "pow", raw::pow(base, exponent), {base, exponent},
      [saved_a = Saved(base), saved_p = Saved(exponent)](const Tensor& grad, const Needs& needs, const Tensor& out) {
        // In the result's dtype: an integer p minus 1.0 would be f32.
        const Tensor a = saved_a->to(out.dtype()), p = saved_p->to(out.dtype());
        Gradients gradients{Tensor(), Tensor()};
        if (needs[0]) {
          const Tensor by_a = mul(p, pow(a, sub(p, 1.0)));
          gradients[0] = sum_to(mul(grad, where(p == 0.0, 0.0, by_a)), a.shape());
        }
        if (needs[1]) {
          const Tensor base = where(a == 0.0, where(p >= 0.0, 1.0, a), a);
          gradients[1] = sum_to(mul(grad, mul(out, log(base))), p.shape());
        }
        return gradients;
      });
}

namespace {

// maximum and minimum: the chosen operand gets the gradient, equal operands share it. If one is NaN, both get it.
Tensor choose(const char* name, raw::Compare loses, Tensor out, const Tensor& a, const Tensor& b) {
  return record(name, std::move(out), {a, b},
                [loses, a = Saved(a), b = Saved(b)](const Tensor& grad, const Needs& needs) {
                  const Tensor share = where(*a == *b, mul(grad, 0.5), grad);
                  const auto part = [&](const Tensor& own, const Tensor& other) {
                    return sum_to(where(raw::compare(loses, own, other), 0.0, share), own.shape());
                  };
                  return Gradients{needs[0] ? part(*a, *b) : Tensor(), needs[1] ? part(*b, *a) : Tensor()};
                });
}

}  // namespace

Tensor maximum(const Tensor& a, const Tensor& b) {
  require_defined("maximum", a, "a", b, "b");
  return choose("maximum", raw::Compare::kLess, raw::maximum(a, b), a, b);
}
Tensor minimum(const Tensor& a, const Tensor& b) {
  require_defined("minimum", a, "a", b, "b");
  return choose("minimum", raw::Compare::kGreater, raw::minimum(a, b), a, b);
}

Tensor max(const Tensor& a, const Tensor& b) {
  return named("max", [&] { return maximum(a, b); });
}
Tensor min(const Tensor& a, const Tensor& b) {
  return named("min", [&] { return minimum(a, b); });
}

// --- with numbers -----------------------------------------------------------------------------------------------------------

Tensor factor_like(const char* op, const Tensor& x, const Scalar& number) {
  require_defined(op, x);
  return raw::scalar_like(op, is_half(x.dtype()) ? raw::empty({}, {.dtype = kFloat32, .device = x.device()}) : x,
                          number);
}

namespace {

// The product or quotient of x and a number. It is f32 for a 0-d x of f16 or bf16, next to which the number is f32.
Tensor in_dtype_of(const Tensor& x, Tensor result) {
  if (is_half(x.dtype())) return result.to(x.dtype());
  return result;
}

}  // namespace

Tensor add(const Tensor& a, const Scalar& b) { return add(a, raw::scalar_like("add", a, b)); }
Tensor sub(const Tensor& a, const Scalar& b) { return sub(a, raw::scalar_like("sub", a, b)); }
Tensor mul(const Tensor& a, const Scalar& b) { return in_dtype_of(a, mul(a, factor_like("mul", a, b))); }
// Integers are divided in f32, so the number need not fit their dtype: u8 / -1 is not u8 / 255.
Tensor div(const Tensor& a, const Scalar& b) { return in_dtype_of(a, div(a, factor_like("div", a, b.to_double()))); }
Tensor pow(const Scalar& base, const Tensor& exponent) {
  require_defined("pow", exponent, "exponent");
  return pow(raw::scalar_like("pow", exponent, base), exponent);
}
Tensor operator-(const Scalar& a, const Tensor& b) { return sub(raw::scalar_like("sub", b, a), b); }
Tensor operator/(const Scalar& a, const Tensor& b) {
  return in_dtype_of(b, div(factor_like("div", b, a.to_double()), b));
}

// --- comparisons --------------------------------------------------------------------------------------------------------------

#define LOCKSTEP_COMPARISON(symbol, relation)                                        \
  Tensor operator symbol(const Tensor& a, const Tensor& b) {                         \
    require_defined(#symbol, a, "a", b, "b");                                        \
    return raw::compare(raw::Compare::relation, a, b);                               \
  }                                                                                  \
  Tensor operator symbol(const Tensor& a, const Scalar& b) {                         \
    return raw::compare(raw::Compare::relation, a, raw::scalar_like(#symbol, a, b)); \
  }
LOCKSTEP_COMPARISON(==, kEqual)
LOCKSTEP_COMPARISON(!=, kNotEqual)
LOCKSTEP_COMPARISON(<, kLess)
LOCKSTEP_COMPARISON(<=, kLessEqual)
LOCKSTEP_COMPARISON(>, kGreater)
LOCKSTEP_COMPARISON(>=, kGreaterEqual)
#undef LOCKSTEP_COMPARISON

namespace {

// The largest or smallest truth of the elements.
Tensor truth(const char* op, Tensor (*extreme)(const Tensor&, const Shape&, bool, const char*), const Tensor& x,
             const Shape& dims, bool keepdim) {
  return named(op, [&] { return extreme(x.dtype() == kBool ? x.detach() : x != 0, dims, keepdim, op); });
}

}  // namespace

Tensor any(const Tensor& x, const Shape& dims, bool keepdim) {
  if (x.numel() == 0) return raw::sum(x, dims, keepdim) != 0;
  return truth("any", raw::max, x, dims, keepdim);
}
Tensor all(const Tensor& x, const Shape& dims, bool keepdim) {
  if (x.numel() == 0) return raw::sum(x, dims, keepdim) == 0;
  return truth("all", raw::min, x, dims, keepdim);
}

bool equal(const Tensor& a, const Tensor& b) {
  require_defined("equal", a, "a", b, "b");
  return raw::equal(a, b);
}
bool allclose(const Tensor& a, const Tensor& b, double rtol, double atol, bool equal_nan) {
  require_defined("allclose", a, "a", b, "b");
  return raw::allclose(a, b, rtol, atol, equal_nan);
}

}  // namespace lockstep
