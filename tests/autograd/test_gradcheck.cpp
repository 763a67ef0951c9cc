// Tests gradcheck itself: it must detect wrong gradients.
#include "tests/support/testing.h"

namespace {

using Inputs = std::vector<ls::Tensor>;

// x^2 with a configurable gradient.
template <int kFirst>
struct Square : ls::autograd::Function<Square<kFirst>> {
  static ls::Tensor forward(ls::autograd::Context& context, const ls::Tensor& x) {
    context.save_for_backward({x});
    return x * x;
  }
  static ls::autograd::Gradients backward(ls::autograd::Context& context, const ls::Tensor& grad) {
    return {grad * context.saved(0) * kFirst};
  }
};

// The right gradient, but detached: the second derivative is lost.
struct Flat : ls::autograd::Function<Flat> {
  static ls::Tensor forward(ls::autograd::Context& context, const ls::Tensor& x) {
    context.save_for_backward({x});
    return x * x;
  }
  static ls::autograd::Gradients backward(ls::autograd::Context& context, const ls::Tensor& grad) {
    return {grad * context.saved(0).detach() * 2.0};
  }
};

const Inputs at = {ls::tensor({0.5, -1.5}, {.dtype = ls::kFloat64, .requires_grad = true})};

}  // namespace

TEST_CASE("gradcheck accepts a right gradient and leaves its inputs unchanged") {
  const std::vector<double> before = at[0].to_vector<double>();
  CHECK(ls::autograd::gradcheck([](const Inputs& in) { return Square<2>::apply(in[0]); }, at, {.second_order = true}));
  CHECK(at[0].to_vector<double>() == before);
  CHECK(!at[0].grad().defined());
}

TEST_CASE("gradcheck detects a wrong gradient and names the element") {
  const ls::Callback<ls::Tensor(const Inputs&)> wrong = [](const Inputs& in) { return Square<3>::apply(in.back()); };
  CHECK(!ls::autograd::gradcheck(wrong, at, {.raise_exception = false}));
  const auto text = [&](const Inputs& in) { return error_of([&] { (void)ls::autograd::gradcheck(wrong, in); }); };
  CHECK(contains(text(at), "gradcheck: first order, input 0, element 0 (x = 0.5): backward gives"));
  CHECK(contains(text({ls::tensor({2, 3}), at[0]}), "first order, input 1, element 0 (x = 0.5)"));
}

TEST_CASE("gradcheck of second order detects a gradient that cannot be differentiated") {
  const ls::Callback<ls::Tensor(const Inputs&)> flat = [](const Inputs& in) { return Flat::apply(in[0]); };
  CHECK(ls::autograd::gradcheck(flat, at));
  CHECK(!ls::autograd::gradcheck(flat, at, {.raise_exception = false, .second_order = true}));
  CHECK(contains(error_of([&] { (void)ls::autograd::gradcheck(flat, at, {.second_order = true}); }), "second order"));
}

TEST_CASE("gradcheck refuses inputs that it cannot check") {
  const auto identity = [](const Inputs& in) { return in[0] * 2; };
  CHECK(contains(error_of([&] { (void)ls::autograd::gradcheck(identity, {ls::ones({1}, {.requires_grad = true})}); }),
                 "f64"));
  CHECK(contains(error_of([&] { (void)ls::autograd::gradcheck(identity, {ls::ones({1}, {.dtype = ls::kFloat64})}); }),
                 "no input requires grad"));
}

TEST_CASE("gradcheck does not change inputs that do not require grad") {
  const Inputs in = {at[0], ls::tensor({2, 3})};
  CHECK(ls::autograd::gradcheck([](const Inputs& x) { return x[0] * x[1]; }, in, {.second_order = true}));
}
