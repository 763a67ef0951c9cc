// linalg: values and gradients of PyTorch, decompositions that give their matrix back, derivatives, and errors.
#include "tests/support/gradcheck_table.h"

#include "tests/support/golden_case.h"

namespace {

namespace linalg = ls::linalg;
using gradcheck_table::check, gradcheck_table::curved;

const ls::StateDict& dict() {
  static const ls::StateDict values = golden("more");
  return values;
}

void compare(const std::string& name, const std::vector<std::string>& inputs,
             const std::function<ls::Tensor(const Inputs&)>& function) {
  for (const std::string& tag : float_tags())
    check_case(dict(), name + "." + tag, inputs, function, "",
               tag == "f32" ? Tolerance{5e-3, 5e-4} : Tolerance{1e-9, 1e-10});
}

ls::Tensor mt(const ls::Tensor& x) { return x.transpose(-2, -1); }

// A matrix whose inverse is well behaved, from any one; of a wide matrix, that of its first columns.
ls::Tensor regular(const ls::Tensor& x) { return x + 2 * ls::eye(x.size(-2), x.size(-1), {.dtype = x.dtype()}); }
ls::Tensor positive(const ls::Tensor& x) { return regular(ls::matmul(x, mt(x))); }

ls::Tensor identity_like(const ls::Tensor& x) {
  return ls::eye(x.size(-1), x.size(-1), {.dtype = x.dtype()}).expand(x.shape());
}

}  // namespace

TEST_CASE("linalg gives PyTorch's values and gradients") {
  compare("inv", {"a"}, [](const Inputs& in) { return linalg::inv(in[0]); });
  compare("det", {"a"}, [](const Inputs& in) { return linalg::det(in[0]); });
  compare("det_singular", {"a"}, [](const Inputs& in) { return linalg::det(in[0]); });
  compare("slogdet", {"a"}, [](const Inputs& in) { return linalg::slogdet(in[0]).second; });
  compare("cholesky", {"a"}, [](const Inputs& in) { return linalg::cholesky(in[0]); });
  for (const std::string name : {"solve", "solve_vector", "solve_vectors"})
    compare(name, {"a", "b"}, [](const Inputs& in) { return linalg::solve(in[0], in[1]); });
  compare("qr_q", {"a"}, [](const Inputs& in) { return linalg::qr(in[0]).first; });
  compare("qr_r", {"a"}, [](const Inputs& in) { return linalg::qr(in[0]).second; });
  compare("qr_square", {"a"}, [](const Inputs& in) {
    const auto [q, r] = linalg::qr(in[0]);
    return ls::cat({q, r});
  });
  compare("svd", {"a"}, [](const Inputs& in) { return linalg::svd(in[0]).s; });
  compare("svd_wide", {"a"}, [](const Inputs& in) { return linalg::svd(in[0]).s; });
  check_close(linalg::slogdet(dict().at("slogdet.f64/a")).first, dict().at("slogdet.f64/sign"), "sign");
  const ls::Tensor& tall = dict().at("qr_q.f64/a");
  const auto [q, r] = linalg::qr(mt(tall));
  check_close(q, dict().at("qr_wide.f64/q"), "wide q", {1e-10, 1e-12});
  check_close(r, dict().at("qr_wide.f64/r"), "wide r", {1e-10, 1e-12});
  const auto [all_q, all_r] = linalg::qr(tall, true);
  check_close(all_q, dict().at("qr_complete.f64/q"), "complete q", {1e-10, 1e-12});
  check_close(all_r, dict().at("qr_complete.f64/r"), "complete r", {1e-10, 1e-12});
}

TEST_CASE("a decomposition of any shape gives the matrix back, and orthonormal factors") {
  for (const ls::Shape& shape : {ls::Shape{1, 1}, {5, 5}, {2, 7, 3}, {2, 3, 7}, {40, 20}, {20, 40}, {3, 0, 2, 2}}) {
    for (const bool full : {false, true}) {
      INFO(shape.to_string(), " ", full);
      const ls::Tensor a = numbers(shape, {.dtype = ls::kFloat64});
      const std::int64_t k = std::min(a.size(-1), a.size(-2));
      const auto [q, r] = linalg::qr(a, full);
      check_close(ls::matmul(q, r), a, "q r", {0, 1e-12});
      check_close(ls::matmul(mt(q), q), identity_like(ls::matmul(mt(q), q)), "q", {0, 1e-12});
      CHECK(ls::equal(r, ls::triu(r)));
      const auto [u, s, vh] = linalg::svd(a, full);
      check_close(ls::matmul(u.narrow(-1, 0, k) * s.unsqueeze(-2), vh.narrow(-2, 0, k)), a, "u s vh", {0, 1e-12});
      check_close(ls::matmul(mt(u), u), identity_like(ls::matmul(mt(u), u)), "u", {0, 1e-12});
      check_close(ls::matmul(vh, mt(vh)), identity_like(ls::matmul(vh, mt(vh))), "vh", {0, 1e-12});
    }
  }
  const ls::Tensor a = positive(numbers({2, 30, 30}, {.dtype = ls::kFloat64})), l = linalg::cholesky(a);
  check_close(ls::matmul(l, mt(l)), a, "l l^T", {0, 1e-12});
  check_close(ls::matmul(linalg::inv(a), a), identity_like(a), "inverse", {0, 1e-11});
}

TEST_CASE("linalg has the right first and second derivatives") {
  check("inv", {{2, 3, 3}}, [](const Inputs& in) { return linalg::inv(regular(in[0])); });
  check("solve", {{2, 3, 3}, {3, 2}}, [](const Inputs& in) { return linalg::solve(regular(in[0]), in[1]); });
  check("solve", {{3, 3}, {2, 3, 1}}, [](const Inputs& in) { return linalg::solve(regular(in[0]), in[1]); });
  check("det", {{2, 3, 3}}, [](const Inputs& in) { return linalg::det(regular(in[0])); });
  check("slogdet", {{2, 3, 3}}, [](const Inputs& in) { return linalg::slogdet(regular(in[0])).second; });
  check("cholesky", {{2, 3, 3}}, [](const Inputs& in) { return curved(linalg::cholesky(positive(in[0]))); });
  check("qr", {{2, 4, 3}}, [](const Inputs& in) {
    const auto [q, r] = linalg::qr(in[0]);
    return curved(ls::matmul(ls::tril(r + 1), mt(q) * 2)) + ls::sum(r);
  });
  for (const bool complete : {false, true}) {  // the same for wide matrices
    check("qr", {{2, 3, 5}}, [&](const Inputs& in) {
      const auto [q, r] = linalg::qr(regular(in[0]), complete);
      return curved(ls::matmul(q, ls::tanh(r))) + ls::sum(r);
    });
    check("qr", {{3, 4}}, [&](const Inputs& in) { return curved(linalg::qr(regular(in[0]), complete).first); });
    check("qr", {{3, 4}}, [&](const Inputs& in) { return curved(linalg::qr(regular(in[0]), complete).second); });
  }
  const ls::Tensor a = numbers({2, 3, 2}, {.dtype = ls::kFloat64, .requires_grad = true});
  CHECK(ls::autograd::gradcheck([](const Inputs& in) { return curved(linalg::svd(in[0]).s); }, {a}));
}

// The expected numbers are those of PyTorch 2.15.
TEST_CASE("qr of a wide matrix has PyTorch's gradient") {
  const ls::Tensor a =
      ls::tensor({{1.0, 2.0, 0.0, -1.0}, {3.0, -1.0, 2.0, 0.5}}, {.dtype = ls::kFloat64, .requires_grad = true});
  const auto [q, r] = linalg::qr(a);
  (ls::sum(ls::square(q + 1)) + ls::sum(ls::square(r) * r)).backward();
  check_close(a.grad(),
              ls::tensor({{-7.76971621103371, -14.04051281114760, -4.55367983064247, -3.51012820278690},
                          {-29.03287119800590, 4.36394317103237, -9.86630629972534, 1.09098579275809}},
                         {.dtype = ls::kFloat64}),
              "gradient", {1e-10, 1e-10});
}

TEST_CASE("the gradient of a determinant is that of its cofactors, also for singular matrices") {
  const ls::Tensor a = ls::tensor({{{1.0, 2.0}, {2.0, 4.0}}, {{0.0, 0.0}, {0.0, 0.0}}, {{1.0, 2.0}, {3.0, 4.0}}},
                                  {.dtype = ls::kFloat64, .requires_grad = true});
  ls::sum(linalg::det(a)).backward();
  check_close(a.grad(),
              ls::tensor({{{4.0, -2.0}, {-2.0, 1.0}}, {{0.0, 0.0}, {0.0, 0.0}}, {{4.0, -3.0}, {-2.0, 1.0}}},
                         {.dtype = ls::kFloat64}),
              "cofactors", {1e-12, 1e-12});
}

TEST_CASE("matrices without elements") {
  CHECK(linalg::det(ls::zeros({2, 0, 0})).to_vector<double>() == std::vector<double>{1, 1});
  CHECK(linalg::inv(ls::zeros({0, 3, 3})).shape() == ls::Shape{0, 3, 3});
  CHECK(linalg::svd(ls::zeros({3, 0})).u.shape() == ls::Shape{3, 3});
  CHECK(linalg::svd(ls::zeros({3, 0})).s.shape() == ls::Shape{0});
  CHECK(ls::equal(linalg::qr(ls::zeros({2, 0}), true).first, ls::eye(2)));
}

TEST_CASE("linalg names singular matrices and those that do not fit") {
  const ls::Tensor singular = ls::tensor({{{2.0, 1.0}, {1.0, 2.0}}, {{1.0, 2.0}, {2.0, 4.0}}});
  CHECK(error_of([&] { linalg::inv(singular); }) ==
        "linalg.inv: matrix 1 of (2, 2, 2) f32 cpu is singular: pivot 1 of its LU decomposition is 0");
  CHECK(contains(error_of([&] { linalg::solve(singular, ls::ones({2})); }), "linalg.solve: matrix 1 of (2, 2, 2)"));
  const auto [sign, logarithm] = linalg::slogdet(singular);
  CHECK(sign.to_vector<double>()[1] == 0);
  CHECK(logarithm.to_vector<double>()[1] == -kInf);
  CHECK(contains(error_of([] {
                   linalg::cholesky(ls::tensor({{1.0, 2.0}, {2.0, 1.0}}));
                 }),
                 "matrix 0 of (2, 2) f32 cpu is not positive definite: its leading minor of order 2 is not"));
  CHECK(contains(error_of([] { linalg::svd(ls::full({2, 2}, kNan)); }), "linalg.svd: matrix 0 of (2, 2) f32 cpu has"));
  CHECK(contains(error_of([] { linalg::inv(ls::ones({2, 3})); }), "expected a square one"));
  CHECK(contains(error_of([] { linalg::det(ls::ones({2})); }), "expected (..., rows, columns) of f32 or f64"));
  CHECK(contains(error_of([] { linalg::qr(ls::tensor({{1, 2}})); }), "linalg.qr: the matrix is (1, 2) i64 cpu"));
  CHECK(contains(error_of([] { linalg::solve(ls::ones({2, 2}), ls::ones({3, 1})); }), "linalg.solve: a is (2, 2)"));
}

TEST_CASE("backward says which factors have no gradient") {
  const ls::TensorOptions leaf = {.requires_grad = true};
  const auto backward_of = [&](const ls::Shape& shape, auto factor) {
    return error_of([&] { ls::sum(factor(numbers(shape, leaf))).backward(); });
  };
  CHECK(contains(backward_of({3, 2}, [](const ls::Tensor& a) { return linalg::qr(a, true).second; }),
                 "linalg.qr: a is (3, 2) f32 cpu, and complete is true"));
  CHECK(
      contains(backward_of({3, 2}, [](const ls::Tensor& a) { return linalg::svd(a).u; }), "only the singular values"));
  CHECK(contains(backward_of({3, 2}, [](const ls::Tensor& a) { return linalg::svd(a).vh; }), "u or vh of (3, 2)"));
}

TEST_CASE("the bits of a matrix do not depend on the number of threads or on the batch around it") {
  const ls::Tensor batch = numbers({5, 24, 24});
  const auto bits = [](const ls::Tensor& a) {
    return std::vector<ls::Tensor>{linalg::inv(a), linalg::det(a), linalg::qr(a).first, linalg::svd(a).u};
  };
  const std::vector<ls::Tensor> all = bits(batch), one = bits(batch[3].clone());
  const int threads = ls::num_threads();
  ls::set_num_threads(1);
  const std::vector<ls::Tensor> alone = bits(batch);
  ls::set_num_threads(threads);
  for (std::size_t i = 0; i < all.size(); ++i) {
    CHECK(same_bits(all[i], alone[i]));
    CHECK(same_bits(all[i][3], one[i]));
  }
}
