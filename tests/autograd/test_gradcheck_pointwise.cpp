// Gradient checks of first and second order for every function of pointwise.def, new lines included.
#include "tests/support/testing.h"

namespace {

using Inputs = std::vector<ls::Tensor>;
using Function = ls::Callback<ls::Tensor(const Inputs&)>;

const ls::autograd::GradcheckOptions thorough = {.second_order = true};

// Numbers over the domain, away from 0 and 1, where some functions are not differentiable.
ls::Tensor points(double low, double high) {
  const ls::NoGradGuard no_grad;
  ls::Tensor x = ls::linspace(low + 0.01, high - 0.013, 14, {.dtype = ls::kFloat64});
  x = ls::where(ls::abs(x) < 0.05, x + 0.1, x);
  return ls::where(ls::abs(ls::abs(x) - 1.5) < 0.05, x + 0.1, x).view({2, 7}).requires_grad_();
}

void check(const char* name, const Function& function, double low, double high) {
  INFO(std::string(name));  // a std::string, because doctest prints the address of a const char*
  CHECK_NOTHROW((void)ls::autograd::gradcheck(function, {points(low, high)}, thorough));
}

// Parameters that exercise both branches of a function. A function with parameters and without an entry does not
// compile.
ls::Tensor with_leaky_relu(const ls::Tensor& x) { return ls::leaky_relu(x, 0.2); }
ls::Tensor with_elu(const ls::Tensor& x) { return ls::elu(x, 1.5); }
ls::Tensor with_softplus(const ls::Tensor& x) { return ls::softplus(x) + ls::softplus(x, 2.5, 3); }
ls::Tensor with_clamp(const ls::Tensor& x) { return ls::clamp(x, -1.5, 1.5); }
ls::Tensor with_pow_scalar(const ls::Tensor& x) {
  return ls::pow(x, 2.5) + ls::pow(x, -1) + ls::pow(x, 3) + ls::pow(x, 0.5) + ls::pow(x, 0) + ls::pow(x, 1);
}

}  // namespace

TEST_CASE("every pointwise function has the gradient and the second derivative of its value") {
#define POINTWISE(name, functor, dtypes, low, high) \
  check(                                            \
      #name, [](const Inputs& in) { return ls::name(in[0]); }, low, high);
#define POINTWISE_WITH_PARAMETERS(name, functor, dtypes, low, high) \
  check(                                                            \
      #name, [](const Inputs& in) { return with_##name(in[0]); }, low, high);
#include "lockstep/tensor/ops/pointwise.def"
#undef POINTWISE
}

TEST_CASE("every pointwise function of a strided view has the gradient of its value") {
#define POINTWISE(name, functor, dtypes, low, high) \
  check(                                            \
      #name, [](const Inputs& in) { return ls::name(in[0].t()); }, low, high);
#define POINTWISE_WITH_PARAMETERS(name, functor, dtypes, low, high) \
  check(                                                            \
      #name, [](const Inputs& in) { return with_##name(in[0].t()); }, low, high);
#include "lockstep/tensor/ops/pointwise.def"
#undef POINTWISE
}

namespace {

// The fix that the error names.
struct Tanh : ls::autograd::Function<Tanh> {
  static ls::Tensor forward(ls::autograd::Context& context, const ls::Tensor& x) {
    context.save_for_backward({x});
    return ls::tanh(x);
  }
  static ls::autograd::Gradients backward(ls::autograd::Context& context, const ls::Tensor& grad) {
    const ls::Tensor y = Tanh::apply(context.saved(0));
    return {grad - grad * y * y};
  }
};

}  // namespace

TEST_CASE("a third derivative of a pointwise function is refused, by name, and a Function around it provides one") {
  const ls::Tensor x = ls::tensor({0.5}, {.dtype = ls::kFloat64, .requires_grad = true});
  ls::Tensor y = ls::tanh(x);
  for (int i = 0; i < 2; ++i) y = ls::autograd::grad(y, x, {.create_graph = true});
  CHECK(contains(error_of([&] { ls::autograd::grad(y, x); }), "tanh: third derivatives"));
  CHECK(contains(error_of([&] { ls::autograd::grad(y, x); }), "autograd::Function"));
  y = Tanh::apply(x);
  for (int i = 0; i < 3; ++i) y = ls::autograd::grad(y, x, {.create_graph = true});
  const double t = std::tanh(0.5), slope = 1 - t * t;
  CHECK(y.item<double>() == doctest::Approx(-2 * slope * (1 - 3 * t * t)));
}

TEST_CASE("the gradient at a kink is PyTorch's: 0 at 0 for relu and abs, 0 on the limits of clamp") {
  const auto slope = [](const ls::Tensor& x, auto function) {
    ls::sum(function(x)).backward();
    return x.grad().to_vector<double>();
  };
  const auto leaf = [](double value) { return ls::tensor({value}, {.requires_grad = true}); };
  CHECK(slope(leaf(0), [](const ls::Tensor& x) { return ls::relu(x); })[0] == 0);
  CHECK(slope(leaf(0), [](const ls::Tensor& x) { return ls::abs(x); })[0] == 0);
  CHECK(slope(leaf(1), [](const ls::Tensor& x) { return ls::clamp(x, -1, 1); })[0] == 0);
  CHECK(slope(leaf(-1), [](const ls::Tensor& x) { return ls::clamp(x, -1, 1); })[0] == 0);
  CHECK(slope(leaf(0), [](const ls::Tensor& x) { return ls::leaky_relu(x, 0.2); })[0] == 0.2f);
}
