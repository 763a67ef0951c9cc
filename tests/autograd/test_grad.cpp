// autograd::grad: gradients as values, and derivatives of derivatives.
#include "tests/support/testing.h"

using ls::autograd::grad;

namespace {
using Doubles = std::vector<double>;
ls::Tensor leaf(std::initializer_list<double> values) {
  return ls::tensor(values, {.dtype = ls::kFloat64, .requires_grad = true});
}
}  // namespace

TEST_CASE("grad returns gradients and changes no tensor's grad") {
  const ls::Tensor x = leaf({2}), y = leaf({5});
  const auto gradients = grad(std::vector<ls::Tensor>{x * x * y}, {x, y});
  CHECK(gradients[0].item<double>() == 20);
  CHECK(gradients[1].item<double>() == 4);
  CHECK(!x.grad().defined());
  CHECK(!y.grad().defined());
}

TEST_CASE("grad gives the gradient of an intermediate result, and of an output itself") {
  const ls::Tensor x = leaf({2});
  const ls::Tensor middle = x * 3;
  const ls::Tensor y = middle * middle;
  const auto gradients = grad(std::vector<ls::Tensor>{y}, {middle, x, y, middle});
  CHECK(gradients[0].item<double>() == 12);
  CHECK(gradients[1].item<double>() == 36);
  CHECK(gradients[2].item<double>() == 1);
  CHECK(gradients[3].item<double>() == 12);
}

TEST_CASE("grad adds over several outputs, weighted by grad_outputs") {
  const ls::Tensor x = leaf({2});
  CHECK(grad({x * x, x * 3}, {x}, {.grad_outputs = {ls::tensor({10.0}, {.dtype = ls::kFloat64}), {}}})[0]
            .item<double>() == 43);
  CHECK(grad({x * x, x * x}, {x})[0].item<double>() == 8);
  const ls::Tensor y = x * x;
  CHECK(grad({y, y}, {x})[0].item<double>() == 8);  // the same output twice
}

TEST_CASE("an input that no output depends on is an error, or undefined on request") {
  const ls::Tensor x = leaf({2}), unused = leaf({3});
  CHECK(contains(error_of([&] {
                   grad(std::vector<ls::Tensor>{x * 2}, {x, unused});
                 }),
                 "no output depends on input 1 ((1) f64 cpu); pass .allow_unused = true"));
  const auto gradients = grad(std::vector<ls::Tensor>{x * 2}, {x, unused}, {.allow_unused = true});
  CHECK(gradients[0].defined());
  CHECK(!gradients[1].defined());
}

TEST_CASE("grad refuses tensors that it cannot differentiate") {
  const ls::Tensor x = leaf({2});
  CHECK(contains(error_of([&] { grad(x * 2, ls::ones({1})); }), "does not require grad"));
  CHECK(contains(error_of([&] { grad(ls::ones({1}), x); }), "grad: output 0 ((1) f32 cpu) does not depend"));
  CHECK(contains(error_of([&] { grad(leaf({1, 2}) * 2, x); }), "pass its gradient in grad_outputs"));
  CHECK(contains(error_of([&] {
                   grad(std::vector<ls::Tensor>{x * 2}, {x}, {.grad_outputs = {ls::ones({1}), ls::ones({1})}});
                 }),
                 "2 grad_outputs for 1 outputs"));
  CHECK(contains(error_of([&] { grad(x * 2, x, {.grad_outputs = {ls::ones({3})}}); }),
                 "grad_outputs 0 is (3) f32 cpu, the output (1) f64 cpu"));
  for (const ls::Tensor& wrong :
       {ls::ones({1}), ls::ones({1}, {.dtype = ls::kFloat64, .device = "cpu:1"}), ls::ones({1, 1})}) {
    CHECK(contains(error_of([&] { grad(x * 2, x, {.grad_outputs = {wrong}}); }), "the output (1) f64 cpu; reshape it"));
  }
  CHECK(contains(error_of([&] { grad(std::vector<ls::Tensor>{x * 2}, {}); }), "no inputs"));
}

TEST_CASE("grad runs only the part of the graph that leads to its inputs") {
  struct Tripwire : ls::autograd::Function<Tripwire> {
    static ls::Tensor forward(ls::autograd::Context&, const ls::Tensor& x) { return x * 1; }
    static ls::autograd::Gradients backward(ls::autograd::Context&, const ls::Tensor&) {
      throw ls::InvalidArgument("was run");
    }
  };
  const ls::Tensor x = leaf({2}), other = leaf({3});
  CHECK(grad(x * x * Tripwire::apply(other), x).item<double>() == 12);
}

TEST_CASE("create_graph gives derivatives of derivatives, three times where the operations allow it") {
  const ls::Tensor x = leaf({2});
  const ls::Tensor y = x * x * x * x;
  const ls::Tensor first = grad(y, x, {.create_graph = true});
  const ls::Tensor second = grad(first, x, {.create_graph = true});
  const ls::Tensor third = grad(second, x, {.create_graph = true});
  CHECK(first.item<double>() == 32);
  CHECK(second.item<double>() == 48);
  CHECK(third.item<double>() == 48);
  CHECK(grad(third, x).item<double>() == 24);
  CHECK(grad(y, x).item<double>() == 32);  // the graph was kept
}

TEST_CASE("without create_graph a gradient has no history") {
  const ls::Tensor x = leaf({2});
  CHECK(!grad(x * x, x).requires_grad());
  (x * x).backward();
  CHECK(!x.grad().requires_grad());
}

TEST_CASE("backward with create_graph gives gradients that can be differentiated: a gradient penalty") {
  const ls::Tensor x = leaf({3});
  (x * x * x).backward(ls::BackwardOptions{.create_graph = true});
  const ls::Tensor g = x.grad();  // 3 x^2
  CHECK(g.requires_grad());
  CHECK(grad(g * g, x).item<double>() == 4 * 9 * 27);  // d(9 x^4)/dx = 36 x^3
  x.set_grad({});
}

TEST_CASE("a Hessian-vector product agrees with its closed form") {
  const ls::Tensor a = numbers({4, 4}, {.dtype = ls::kFloat64}),
                   x = numbers({4}, {.dtype = ls::kFloat64, .requires_grad = true}, 2),
                   v = numbers({4}, {.dtype = ls::kFloat64}, 3);
  const ls::Tensor y = ls::sum(x * ls::matmul(a, x));  // x^T A x: Hessian A + A^T
  const ls::Tensor product = grad(ls::sum(grad(y, x, {.create_graph = true}) * v), x);
  check_close(product, ls::matmul(a + a.t(), v), "Hessian times v", {1e-12, 1e-14});
}

TEST_CASE("grad under NoGradGuard works on a graph recorded before") {
  const ls::Tensor x = leaf({2});
  const ls::Tensor y = x * x;
  const ls::NoGradGuard no_grad;
  CHECK(grad(y, x).item<double>() == 4);
}

TEST_CASE("softmax and log_softmax give the same gradient with the fused kernel as with recorded operations") {
  for (std::int64_t dim : {0, 1}) {
    for (auto function : {ls::softmax, ls::log_softmax}) {
      const ls::Tensor x = numbers({5, 7}, {.dtype = ls::kFloat64, .requires_grad = true}),
                       g = numbers({5, 7}, {.dtype = ls::kFloat64}, 2);
      const auto by = [&](bool create) {
        return grad(function(x, dim), x, {.grad_outputs = {g}, .create_graph = create});
      };
      check_close(by(false), by(true).detach(), "softmax", {1e-12, 1e-15});
    }
  }
}
