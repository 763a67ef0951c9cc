#include "lockstep/autograd/ops/linalg.h"

#include <vector>

#include "lockstep/autograd/ops/operations_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/tensor/ops/matrices_internal.h"

namespace lockstep::linalg {
namespace {

Tensor transposed(const Tensor& x) { return x.transpose(-2, -1); }
Tensor as_matrices(const Tensor& x) { return x.unsqueeze(-1).unsqueeze(-1); }  // (...) -> (..., 1, 1)

// x with the leading dimensions `batch`.
Tensor with_leading(const Tensor& x, const Shape& batch) {
  return leading_of(x) == batch ? x : x.expand(with_matrix(batch, x.size(-2), x.size(-1)));
}

// x with its diagonal halved, and 0 above.
Tensor lower_half(const Tensor& x) { return (tril(x) + tril(x, -1)) * 0.5; }

// The matrix of cofactors of each matrix, also of singular ones: det(u) det(vh) u diag(products) vh, where products[j]
// is the product of all singular values but the j-th.
Tensor cofactors(const Tensor& a) {
  const auto [u, s, vh] = raw::svd("linalg.det", a, true);
  const std::int64_t n = a.size(-1);
  const Tensor diagonal = raw::eye(n, n, {.device = a.device()}) != 0;
  const Tensor products = prod(masked_fill(s.unsqueeze(-2), diagonal, 1), -1);
  const Tensor sign = raw::det("linalg.det", u) * raw::det("linalg.det", vh);
  return as_matrices(sign) * matmul(u * products.unsqueeze(-2), vh);
}

}  // namespace

Tensor inv(const Tensor& a) {
  LOCKSTEP_CHECK(a.dim() >= 2, "linalg.inv: the matrix is {}, expected (..., n, n)", describe(a));
  const Tensor identity = with_leading(raw::eye(a.size(-1), a.size(-1), a.options()), leading_of(a));
  return record("linalg_inv", raw::solve("linalg.inv", a, identity), {a},
                [](const Tensor& grad, const Needs&, const Tensor& y) {
                  return Gradients{neg(matmul(transposed(y), matmul(grad, transposed(y))))};
                });
}

Tensor solve(const Tensor& a, const Tensor& b) {
  Shape vectors = a.shape();  // of b, if b has a vector for each matrix
  if (!vectors.empty()) vectors.erase(a.dim() - 1);
  if (b.dim() == 1 || (b.dim() == a.dim() - 1 && b.shape() == vectors)) return solve(a, b.unsqueeze(-1)).squeeze(-1);
  LOCKSTEP_CHECK(
      a.dim() >= 2 && b.dim() >= 2 && a.size(-1) == b.size(-2) && a.dtype() == b.dtype() && a.device() == b.device(),
      "linalg.solve: a is {}, b is {}; expected (..., n, n) and (..., n, k), or vectors, of one dtype", describe(a),
      describe(b));
  const Shape batch = broadcast_shapes("linalg.solve", leading_of(a), leading_of(b));
  const Tensor left = with_leading(a, batch), right = with_leading(b, batch);
  return record("linalg_solve", raw::solve("linalg.solve", left, right), {left, right},
                [a = Saved(left)](const Tensor& grad, const Needs& needs, const Tensor& x) {
                  const Tensor by_b = solve(transposed(*a), grad);
                  return Gradients{needs[0] ? neg(matmul(by_b, transposed(x))) : Tensor(), by_b};
                });
}

// With S = L^-T lower_half(L^T grad) L^-1, the gradient is (S + S^T) / 2. (Murray, 2016)
Tensor cholesky(const Tensor& a) {
  return record("linalg_cholesky", raw::cholesky("linalg.cholesky", a), {a},
                [](const Tensor& grad, const Needs&, const Tensor& l) {
                  const Tensor inner = lower_half(matmul(transposed(l), tril(grad)));
                  const Tensor s = solve(transposed(l), transposed(solve(transposed(l), inner)));
                  return Gradients{(s + transposed(s)) * 0.5};
                });
}

// The gradient is grad times the cofactors, which equal det(a) inv(a)^T if a has an inverse. Second derivatives require
// an inverse.
Tensor det(const Tensor& a) {
  return record("linalg_det", raw::det("linalg.det", a), {a},
                [a = Saved(a)](const Tensor& grad, const Needs&, const Tensor& out) {
                  if (!autograd::grad_mode() && any(out == 0).item<bool>())
                    return Gradients{as_matrices(grad) * cofactors(*a)};
                  return Gradients{as_matrices(grad * out) * transposed(inv(*a))};
                });
}

std::pair<Tensor, Tensor> slogdet(const Tensor& a) {
  const auto [sign, logarithm] = raw::slogdet("linalg.slogdet", a);
  return {sign, record("linalg_slogdet", logarithm, {a}, [a = Saved(a)](const Tensor& grad, const Needs&) {
            return Gradients{as_matrices(grad) * transposed(inv(*a))};
          })};
}

// With M = R grad_R^T - grad_Q^T Q, the gradient is (grad_Q + Q (tril(M) + tril(M, -1)^T)) R^-T. (Seeger et al., 2017)
// A wide matrix is (first, rest) with a square `first` = Q R_first and R_rest = Q^T rest. So the gradient of `rest` is
// Q grad_R_rest, `rest` grad_R_rest^T is added to grad_Q, and the gradient of `first` is that of a square matrix.
std::pair<Tensor, Tensor> qr(const Tensor& a, bool complete) {
  const auto [q, r] = raw::qr("linalg.qr", a, complete);
  const std::vector<Tensor> outs =
      autograd::record_all("linalg_qr", {q, r}, {a}, [a = Saved(a), complete](autograd::Tensors& grads, const Needs&) {
        const std::int64_t m = a->size(-2), n = a->size(-1);
        LOCKSTEP_CHECK(
            m <= n || !complete,
            "linalg.qr: a is {}, and complete is true; q and r of a matrix with more rows than columns have a "
            "gradient only without `complete`",
            describe(*a));
        const auto [q, r] = qr(*a);
        const bool is_wide = m < n;
        Tensor grad_q = grads[0], grad_r = grads[1], grad_rest;
        if (is_wide && grad_r.defined()) {
          const Tensor grad_r_rest = grad_r.narrow(-1, m, n - m);
          const Tensor by_rest = matmul(a->narrow(-1, m, n - m), transposed(grad_r_rest));
          grad_rest = matmul(q, grad_r_rest);
          grad_q = grad_q.defined() ? grad_q + by_rest : by_rest;
          grad_r = grad_r.narrow(-1, 0, m);
        }
        const Tensor square = is_wide ? r.narrow(-1, 0, m) : r;
        Tensor inner = grad_r.defined() ? matmul(square, transposed(grad_r)) : raw::zeros(square.shape(), r.options());
        if (grad_q.defined()) inner = inner - matmul(transposed(grad_q), q);
        Tensor outer = matmul(q, tril(inner) + transposed(tril(inner, -1)));
        if (grad_q.defined()) outer = outer + grad_q;
        const Tensor first = transposed(solve(square, transposed(outer)));
        if (!is_wide) return Gradients{first};
        if (!grad_rest.defined()) grad_rest = raw::zeros(with_matrix(leading_of(*a), m, n - m), a->options());
        return Gradients{cat({first, grad_rest}, -1)};
      });
  return {outs[0], outs[1]};
}

Svd svd(const Tensor& a, bool full_matrices) {
  const raw::Svd out = raw::svd("linalg.svd", a, full_matrices);
  const std::vector<Tensor> outs = autograd::record_all(
      "linalg_svd", {out.u, out.s, out.vh}, {a}, [a = Saved(a)](autograd::Tensors& grads, const Needs&) {
        LOCKSTEP_CHECK(!grads[0].defined() && !grads[2].defined(),
                       "linalg.svd: u or vh of {} requires a gradient; only the singular values have one: detach the "
                       "others, and take first derivatives only",
                       describe(*a));
        const auto [u, s, vh] = svd(*a, false);
        return Gradients{matmul(u * grads[1].unsqueeze(-2), vh)};
      });
  return {outs[0], outs[1], outs[2]};
}

}  // namespace lockstep::linalg
