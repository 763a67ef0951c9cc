// InferenceGuard, with the rules of PyTorch's inference mode.
#include "tests/support/testing.h"

namespace {

const ls::Tensor kX = numbers({3}), kW = numbers({3}, {.requires_grad = true}, 2);

ls::Tensor made_inside() {
  const ls::InferenceGuard guard;
  return kX * 2;
}

}  // namespace

TEST_CASE("InferenceGuard records nothing, also inside an EnableGradGuard, and restores the mode") {
  {
    const ls::InferenceGuard guard;
    CHECK_FALSE((kW * 2).requires_grad());
    const ls::EnableGradGuard enabled;
    CHECK_FALSE(ls::autograd::grad_mode());
    CHECK_FALSE((kW * 2).requires_grad());
    { const ls::InferenceGuard inner; }
    CHECK((kW * 2).is_inference());
  }
  CHECK(ls::autograd::grad_mode());
  CHECK((kW * 2).requires_grad());
  CHECK_FALSE((kW * 2).is_inference());
  const ls::NoGradGuard no_grad;
  { const ls::InferenceGuard guard; }
  CHECK_FALSE(ls::autograd::grad_mode());
}

TEST_CASE("tensors made under InferenceGuard are of inference, views are of the kind of their base") {
  const ls::Tensor y = made_inside();
  CHECK((y.is_inference() && y.view({3, 1}).is_inference() && y.detach().is_inference()));
  CHECK_FALSE(y.clone().is_inference());
  const ls::InferenceGuard guard;
  CHECK_FALSE(kX.view({3, 1}).is_inference());
  CHECK(ls::zeros({2}).is_inference());
  y.add_(1.0);
  CHECK(y.requires_grad_().requires_grad());
}

TEST_CASE("a tensor of inference is not saved for backward; where nothing is saved it may be used") {
  const ls::Tensor y = made_inside();
  const std::string text = error_of([&] { kW* y; });
  CHECK_MESSAGE(contains(text, "was made under InferenceGuard, so it cannot be saved for backward; clone() it"), text);
  CHECK(contains(error_of([&] { ls::matmul(kW.view({1, 3}), y.view({3, 1})); }), "cannot be saved"));
  CHECK((kW + y).requires_grad());  // saves nothing
  CHECK_FALSE((kX * y).requires_grad());
  {
    const ls::NoGradGuard no_grad;
    CHECK_FALSE((kW * y).requires_grad());
  }
  ls::sum(kW * y.clone()).backward();
  CHECK(same_bits(kW.grad(), y.clone()));
  kW.set_grad({});

  struct Product : ls::autograd::Function<Product> {
    static ls::Tensor forward(ls::autograd::Context& context, const ls::Tensor& w, const ls::Tensor& y) {
      context.save_for_backward({y});
      return w * y;
    }
    static ls::autograd::Gradients backward(ls::autograd::Context& context, const ls::Tensor& grad) {
      return {grad * context.saved(0), ls::Tensor()};
    }
  };
  CHECK(contains(error_of([&] { Product::apply(kW, y); }), "cannot be saved"));
}

TEST_CASE("outside of the guard a tensor of inference is not changed in place and requires no grad") {
  const ls::Tensor y = made_inside();
  CHECK(contains(error_of([&] { y.add_(1.0); }), "add_: "));
  CHECK(contains(error_of([&] { y.add_(1.0); }), "was made under InferenceGuard, and is changed in place outside"));
  CHECK(contains(error_of([&] { y.requires_grad_(); }), "clone() it first"));
  CHECK_FALSE(y.requires_grad_(false).requires_grad());
  const ls::Tensor x = kX.clone();
  {
    const ls::InferenceGuard guard;
    x.add_(1.0);  // an ordinary tensor
  }
  x.add_(1.0);
}

TEST_CASE("a change in place of an ordinary tensor under the guard is seen by backward") {
  const ls::Tensor x = kX.clone(), y = kW * x;
  {
    const ls::InferenceGuard guard;
    x.add_(1.0);
  }
  CHECK(contains(error_of([&] { ls::sum(y).backward(); }), "was changed in place"));
}
