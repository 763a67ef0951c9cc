// AnomalyGuard: the first operation of backward whose gradient is NaN, and its module.
#include "tests/support/testing.h"

#include <optional>

namespace {

// The gradient of x * x is NaN where x is 0, because that of sqrt is infinite there.
struct Root : ls::nn::Module {
  ls::Tensor forward(const ls::Tensor& x) const override { return ls::sqrt(x * x); }
};
struct Net : ls::nn::Module {
  ls::nn::Linear& fc = add<ls::nn::Linear>("fc", 2, 2);
  Root& root = add<Root>("root");
  ls::Tensor forward(const ls::Tensor& x) const override { return root(fc(x)); }
};

void set_to_zero(const ls::nn::Parameter& parameter) {
  const ls::NoGradGuard no_grad;
  parameter->zero_();
}

ls::Tensor with_zero() { return ls::tensor({{1.0F, 2.0F}, {3.0F, 0.0F}}).requires_grad_(); }

}  // namespace

TEST_CASE("AnomalyGuard names the operation, the input, and the elements") {
  const ls::Tensor x = with_zero();
  const ls::AnomalyGuard guard;
  const ls::Tensor y = ls::sum(ls::sqrt(x * x));
  CHECK(error_of([&] { y.backward(); }) ==
        "mul (backward): the gradient of input 0 is NaN (1 of 4 elements, first at [1, 1])\n"
        "the gradient of its result is not NaN: look at the operation and its inputs");
}

TEST_CASE("AnomalyGuard says if the NaN came with the loss") {
  const ls::Tensor x = with_zero();
  const ls::AnomalyGuard guard;
  const std::string text = error_of([&] { ls::sum(x * kNan).backward(); });
  CHECK_MESSAGE(contains(text, "mul (backward): the gradient of input 0 is NaN (4 of 4 elements"), text);
  const ls::Tensor y = ls::exp(x);
  const std::string received = error_of([&] { y.backward(ls::full({2, 2}, kNan)); });
  CHECK_MESSAGE(contains(received, "the gradient of its result was NaN already: look at the loss"), received);
  const ls::Tensor scalar = ls::zeros({}).requires_grad_();
  CHECK(contains(error_of([&] { (scalar * kNan).backward(); }), "is NaN (1 of 1 elements)\n"));
}

TEST_CASE("AnomalyGuard names the module, also after the guard and the module are gone") {
  ls::Tensor y;
  {
    const ls::AnomalyGuard guard;
    const Net net;
    set_to_zero(net.fc.bias);
    y = ls::sum(net(ls::zeros({1, 2})));
  }
  const std::string text = error_of([&] { y.backward(); });
  CHECK_MESSAGE(contains(text, "is NaN (2 of 2 elements, first at [0, 0]), in module root (Root)\n"), text);
  const ls::AnomalyGuard guard;
  const Root root;
  const std::string outermost = error_of([&] { ls::sum(root(with_zero())).backward(); });
  CHECK_MESSAGE(contains(outermost, "), in module Root\n"), outermost);
}

TEST_CASE("without AnomalyGuard nothing is checked; under it infinite gradients are no error") {
  const ls::Tensor x = with_zero();
  {
    const ls::AnomalyGuard guard;
    { const ls::AnomalyGuard inner; }
    ls::sum(ls::sqrt(x)).backward();
    CHECK(ls::any(ls::isinf(x.grad())).item<bool>());
    x.set_grad({});
  }
  ls::sum(ls::sqrt(x * x)).backward();
  CHECK(ls::any(ls::isnan(x.grad())).item<bool>());
}

TEST_CASE("AnomalyGuard around backward alone checks as well, without a module") {
  const Root root;
  const ls::Tensor y = ls::sum(root(with_zero()));
  const ls::AnomalyGuard guard;
  const std::string text = error_of([&] { y.backward(); });
  CHECK_MESSAGE(contains(text, "mul (backward): the gradient of input 0 is NaN (1 of 4 elements, first at [1, 1])\n"),
                text);
}

TEST_CASE("AnomalyGuard changes no bits, and checks second derivatives") {
  const auto gradient = [](bool checks) {
    std::optional<ls::AnomalyGuard> guard;
    if (checks) guard.emplace();
    const ls::Tensor x = numbers({3, 4}, {.requires_grad = true});
    ls::sum(ls::tanh(x) * ls::exp(x)).backward();
    return x.grad();
  };
  CHECK(same_bits(gradient(true), gradient(false)));

  const ls::AnomalyGuard guard;
  // At 0 the first derivative is 0, the second one is infinite, and 0 times infinity is NaN.
  const ls::Tensor x = ls::tensor({4.0F, 0.0F}).requires_grad_();
  const ls::Tensor first = ls::autograd::grad({ls::sum(ls::pow(x, 1.5))}, {x}, {.create_graph = true})[0];
  const std::string second = error_of([&] { ls::sum(first * 0.0).backward(); });
  CHECK_MESSAGE(
      contains(second, "pow_scalar (backward): the gradient of input 1 is NaN (1 of 2 elements, first at [1])"),
      second);
}

TEST_CASE("operations that checkpoint repeats are checked as those of its first run") {
  const auto function = [](const ls::Tensor& t) { return ls::sqrt(t * t); };
  ls::Tensor y;
  {
    const ls::AnomalyGuard guard;
    y = ls::sum(ls::autograd::checkpoint(function, with_zero()));
  }
  const std::string text = error_of([&] { y.backward(); });
  CHECK_MESSAGE(contains(text, "checkpoint (backward): mul (backward): the gradient of input 0 is NaN"), text);

  struct Outer : ls::nn::Module {
    Net& net = add<Net>("net");
    ls::Tensor forward(const ls::Tensor& x) const override { return ls::autograd::checkpoint(net, x); }
  };
  const Outer outer;
  set_to_zero(outer.net.fc.bias);
  {
    const ls::AnomalyGuard guard;
    y = ls::sum(outer(ls::zeros({1, 2})));
  }
  const std::string inside = error_of([&] { y.backward(); });
  CHECK_MESSAGE(contains(inside, "checkpoint (backward): called in module Outer: mul (backward): "), inside);
  CHECK_MESSAGE(contains(inside, ", in module net.root (Root)\n"), inside);
}

TEST_CASE("AnomalyGuard holds for the replicas of DataParallel") {
  Net net;
  set_to_zero(net.fc.bias);
  ls::parallel::DataParallel run(net, {"cpu:0", "cpu:1"});
  const ls::Tensor x = ls::cat({ls::ones({2, 2}), ls::zeros({2, 2})}), y = ls::zeros({4, 2});
  const auto loss = [&](const ls::Tensor& in, const ls::Tensor& out) { return ls::sum(run.module()(in) - out); };
  CHECK_NOTHROW(run.backward(x, y, loss));
  const ls::AnomalyGuard guard;
  const std::string text = error_of([&] { run.backward(x, y, loss); });
  CHECK_MESSAGE(
      contains(text, "the gradient of input 0 is NaN (4 of 4 elements, first at [0, 0]), in module root (Root)"), text);
  const std::string called = error_of([&] { ls::sum(run(x)).backward(); });
  CHECK_MESSAGE(contains(called, "in module root (Root)"), called);
}
