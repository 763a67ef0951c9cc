// Matrix products: forward and gradient side by side.
#include <span>

#include "lockstep/autograd/ops/autocast_internal.h"
#include "lockstep/autograd/ops/operations_internal.h"
#include "lockstep/base/check_internal.h"

namespace lockstep {

// For the result's gradient g, d/da = g b^T and d/db = a^T g. A vector is a row (left operand) or a column (right one).
Tensor matmul(const Tensor& a, const Tensor& b) {
  require_defined("matmul", a, "a", b, "b");
  if (narrows(a, b)) [[unlikely]]
    return matmul(narrowed(a), narrowed(b));
  return record("matmul", raw::matmul(a, b), {a, b},
                [a_shape = a.shape(), b_shape = b.shape(), a = Saved(a, requires_grad(b)),
                 b = Saved(b, requires_grad(a))](const Tensor& grad, const Needs& needs) {
                  const bool row = a_shape.dim() == 1, column = b_shape.dim() == 1;
                  Tensor g = row ? grad.unsqueeze(column ? 0 : -2) : grad;
                  if (column) g = g.unsqueeze(-1);  // (..., m, n)
                  Gradients gradients{Tensor(), Tensor()};
                  if (needs[0]) {
                    const Tensor right = column ? b->unsqueeze(1) : *b;
                    const Tensor full = matmul(g, right.transpose(-1, -2));
                    gradients[0] = row ? sum_to(full, {1, a_shape[0]}).reshape(a_shape) : sum_to(full, a_shape);
                  }
                  if (needs[1]) {
                    const Tensor left = row ? a->unsqueeze(0) : *a;
                    if (a_shape.dim() == 2 && b_shape.dim() == 2) {
                      gradients[1] = matmul(left.transpose(-1, -2), g, needs.view(1));
                    } else {
                      const Tensor full = matmul(left.transpose(-1, -2), g);
                      gradients[1] = column ? sum_to(full, {b_shape[0], 1}).reshape(b_shape) : sum_to(full, b_shape);
                    }
                  }
                  return gradients;
                });
}

Tensor matmul(const Tensor& a, const Tensor& b, const Tensor& view) {
  if (!view.defined()) return matmul(a, b);
  raw::matmul_out(a, b, view);
  return view;
}

namespace {

void require_dims(const char* op, const Tensor& a, const Tensor& b, int dims) {
  require_defined(op, a, "a", b, "b");
  LOCKSTEP_CHECK(a.dim() == dims && b.dim() == dims, "{}: needs operands of {} dimensions, got {} and {}; use matmul",
                 op, dims, describe(a), describe(b));
}

Tensor checked_matmul(const char* op, const Tensor& a, const Tensor& b, int dims) {
  require_dims(op, a, b, dims);
  LOCKSTEP_CHECK(dims < 3 || a.size(0) == b.size(0), "{}: batch sizes differ: {} and {}; use matmul to broadcast", op,
                 describe(a), describe(b));
  return named(op, [&] { return matmul(a, b); });
}

// x beta + a b alpha. With f16 and bf16 operands it is computed in f32, so that the result is rounded once.
Tensor add_product(const char* op, const Tensor& x, const Tensor& a, const Tensor& b, const Scalar& beta,
                   const Scalar& alpha, int dims) {
  require_defined(op, a, "a", b, "b");
  if (beta.to_double() != 0) require_defined(op, x, "x");
  if (narrows(x, a, b)) return add_product(op, narrowed(x), narrowed(a), narrowed(b), beta, alpha, dims);
  if (is_half(a.dtype()) && a.dtype() == b.dtype()) {
    const AutocastGuard off(std::optional<DType>{});
    const DType dtype = beta.to_double() == 0 || x.dim() == 0 ? a.dtype() : promote(x.dtype(), a.dtype());
    return add_product(op, in_f32(x), in_f32(a), in_f32(b), beta, alpha, dims).to(dtype);
  }
  const Tensor product = checked_matmul(op, a, b, dims);
  return named(op, [&] {
    if (beta.to_double() == 0) return mul(product, alpha);
    const Tensor offset = x.expand(product.shape());
    return add(beta.to_double() == 1 ? offset : mul(offset, beta), product, alpha);
  });
}

}  // namespace

Tensor mm(const Tensor& a, const Tensor& b) { return checked_matmul("mm", a, b, 2); }
Tensor bmm(const Tensor& a, const Tensor& b) { return checked_matmul("bmm", a, b, 3); }
Tensor dot(const Tensor& a, const Tensor& b) {
  const AutocastGuard off(std::optional<DType>{});  // as in PyTorch, autocast does not convert the operands
  return checked_matmul("dot", a, b, 1);
}
Tensor outer(const Tensor& a, const Tensor& b) {
  require_dims("outer", a, b, 1);
  return named("outer", [&] { return mul(a.unsqueeze(1), b); });
}
Tensor addmm(const Tensor& x, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  return add_product("addmm", x, a, b, beta, alpha, 2);
}
Tensor baddbmm(const Tensor& x, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  return add_product("baddbmm", x, a, b, beta, alpha, 3);
}

const Tensor& as_rows(const Tensor& t, Tensor& flat) {
  if (t.dim() == 2) return t;
  return flat = t.dim() == 1 ? t.unsqueeze(0) : t.flatten(0, -2);
}

Shape leading_of(const Tensor& x) { return std::span(x.shape().begin(), x.shape().size() - 2); }

Shape with_matrix(Shape leading, std::int64_t rows, std::int64_t columns) {
  leading.push_back(rows), leading.push_back(columns);
  return leading;
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  require_defined("linear", x, "x", weight, "weight");
  if (narrows(x, weight, bias)) [[unlikely]]
    return linear(narrowed(x), narrowed(weight), narrowed(bias));
  return record("linear", raw::linear(x, weight, bias), {x, weight, bias},
                [x = Saved(x, requires_grad(weight)), w = Saved(weight, requires_grad(x))](const Tensor& grad,
                                                                                           const Needs& needs) {
                  Tensor g, flat;
                  return Gradients{
                      // of x (..., in), weight (out, in) and bias (out)
                      needs[0] ? matmul(grad, *w) : Tensor(),
                      needs[1] ? matmul(as_rows(grad, g).transpose(0, 1), as_rows(*x, flat), needs.view(1)) : Tensor(),
                      needs[2] ? sum(as_rows(grad, g), {0}, false, needs.view(2)) : Tensor(),
                  };
                });
}

}  // namespace lockstep
