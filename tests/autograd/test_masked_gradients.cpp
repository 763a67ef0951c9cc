// Derivatives of the form 0 / 0 and 0 * infinity: where PyTorch's gradient is finite, ours is. One padded position with
// a gradient of NaN would make every parameter NaN. Values are those of PyTorch 2.15.
#include <functional>

#include "tests/support/testing.h"

namespace {

using Doubles = std::vector<double>;
using Inputs = std::vector<ls::Tensor>;
using Function = std::function<ls::Tensor(const Inputs&)>;

ls::Tensor f64(const Doubles& values) { return ls::tensor(values, {.dtype = ls::kFloat64}); }

// Checks the gradients of the sum of f, in f64 and f32.
void check(const std::string& name, const std::vector<Doubles>& values, const Function& f,
           const std::vector<Doubles>& want) {
  for (const ls::DType dtype : {ls::kFloat64, ls::kFloat32}) {
    INFO(name << " " << ls::name(dtype));
    Inputs inputs;
    for (const Doubles& each : values) inputs.push_back(ls::tensor(each, {.dtype = dtype, .requires_grad = true}));
    ls::sum(f(inputs)).backward();
    for (std::size_t i = 0; i < want.size(); ++i)
      check_close(inputs[i].grad(), ls::tensor(want[i], {.dtype = dtype}), "gradient " + std::to_string(i));
  }
}

// Checks the second derivative by x.
void check_second(const std::string& name, const Doubles& values, const std::function<ls::Tensor(const ls::Tensor&)>& f,
                  const Doubles& want) {
  INFO(name);
  const ls::Tensor x = f64(values).requires_grad_();
  const ls::Tensor first = ls::autograd::grad(ls::sum(f(x)), x, {.create_graph = true});
  check_close(ls::autograd::grad(ls::sum(first), x), f64(want), "second derivative");
}

}  // namespace

TEST_CASE("the gradient of atan2 is 0 at the origin, where the angle is undefined") {
  check("atan2", {{0, 0, 1, 0, 1}, {0, -0.0, 0, 2, 1}}, [](const Inputs& in) { return ls::atan2(in[0], in[1]); },
        {{0, 0, 0, 0.5, 0.5}, {0, 0, -1, 0, -0.5}});
  // Broadcast, and at a padded position behind a mask.
  check("atan2 of a row", {{0, 3}, {0}}, [](const Inputs& in) { return ls::atan2(in[0], in[1]); },
        {{0, 0}, {-1.0 / 3}});
  check("masked", {{0, 1}},
        [](const Inputs& in) {
          return ls::where(f64({0, 1}).to(ls::kBool), ls::atan2(in[0], in[0] * 2), 0.0);
        },
        {{0, 0}});
  const ls::Tensor half = ls::zeros({1}, {.dtype = ls::kFloat16}).requires_grad_();
  ls::sum(ls::atan2(half, half.detach())).backward();
  CHECK(half.grad().item<double>() == 0);
}

TEST_CASE("gradients at zeros, infinities and masked positions are PyTorch's") {
  const auto unary = [](ls::Tensor (*f)(const ls::Tensor&)) { return [f](const Inputs& in) { return f(in[0]); }; };
  check("sqrt", {{0, 4}}, unary(ls::sqrt), {{kInf, 0.25}});
  check("sqrt behind relu", {{0, 4}}, [](const Inputs& in) { return ls::sqrt(ls::relu(in[0])); }, {{0, 0.25}});
  check("norm", {{0, 0}}, [](const Inputs& in) { return ls::norm(in[0]); }, {{0, 0}});
  for (const double p : {1.0, 1.5, 3.0, kInf})
    check("norm p", {{0, 0}}, [p](const Inputs& in) { return ls::norm(in[0], p); }, {{0, 0}});
  check("normalize", {{0, 0}}, [](const Inputs& in) { return ls::normalize(in[0], 2, 0); }, {{1e12, 1e12}});
  check("cosine_similarity", {{0, 0}, {0, 0}}, [](const Inputs& in) { return ls::cosine_similarity(in[0], in[1], 0); },
        {{0, 0}, {0, 0}});
  check("std", {{2, 2, 2}}, [](const Inputs& in) { return ls::std(in[0]); }, {{0, 0, 0}});
  check("var", {{2, 2, 2}}, [](const Inputs& in) { return ls::var(in[0]); }, {{0, 0, 0}});
  check("prod", {{0, 0, 3}}, [](const Inputs& in) { return ls::prod(in[0]); }, {{0, 0, 0}});
  check("prod of one zero", {{0, 2, 3}}, [](const Inputs& in) { return ls::prod(in[0]); }, {{6, 0, 0}});
  check("pow", {{0, 0, 0, 2}, {0, 1, 2, 0}}, [](const Inputs& in) { return ls::pow(in[0], in[1]); },
        {{0, 1, 0, 0}, {0, 0, 0, std::log(2.0)}});
  check("logsumexp", {{-kInf, 1}}, [](const Inputs& in) { return ls::logsumexp(in[0], {0}); }, {{0, 1}});
  check("logsumexp of nothing", {{-kInf, -kInf}}, [](const Inputs& in) { return ls::logsumexp(in[0], {0}); },
        {{kNan, kNan}});
  check("softmax", {{-kInf, 1}}, [](const Inputs& in) { return ls::softmax(in[0], 0); }, {{0, 0}});
  check("softmax of nothing", {{-kInf, -kInf}}, [](const Inputs& in) { return ls::softmax(in[0], 0); }, {{kNan, kNan}});
  check("maximum", {{1, kInf}, {1, kInf}}, [](const Inputs& in) { return ls::maximum(in[0], in[1]); },
        {{0.5, 0.5}, {0.5, 0.5}});
  check("division", {{0, 1}, {0, 0}}, [](const Inputs& in) { return in[0] / in[1]; }, {{kInf, kInf}, {kNan, -kInf}});
}

TEST_CASE("second derivatives are finite where the first one is constant or saturates") {
  check_second("pow 1", {0, 2}, [](const ls::Tensor& x) { return ls::pow(x, 1); }, {0, 0});
  check_second("pow 2.0", {0, 2}, [](const ls::Tensor& x) { return ls::pow(x, 2.0); }, {2, 2});
  check_second("softplus", {-1000, -40, 0, 15, 1000, -kInf, kInf}, [](const ls::Tensor& x) { return ls::softplus(x); },
               {0, std::exp(-40.0), 0.25, std::exp(-15.0) / std::pow(1 + std::exp(-15.0), 2), 0, 0, 0});
  check_second("log_sigmoid", {-1000, 0, 1000}, [](const ls::Tensor& x) { return ls::nn::LogSigmoid()(x); },
               {0, -0.25, 0});
  check_second("silu", {-1000, 0, 1000}, [](const ls::Tensor& x) { return ls::silu(x); }, {0, 0.5, 0});
  check_second("mish", {-1000, 0, 1000}, [](const ls::Tensor& x) { return ls::mish(x); }, {0, 0.64, 0});
  check_second("sigmoid", {-1000, 0, 1000}, [](const ls::Tensor& x) { return ls::sigmoid(x); }, {0, 0, 0});
  check_second("rsqrt", {0, 4}, [](const ls::Tensor& x) { return ls::rsqrt(x); }, {kInf, 0.0234375});
  check_second("pow -1", {0, 2}, [](const ls::Tensor& x) { return ls::pow(x, -1); }, {kInf, 0.25});
}

TEST_CASE("a product of no elements requires grad, and has an empty gradient") {
  for (const auto& [shape, dim] : {std::pair{ls::Shape{0}, 0}, {ls::Shape{0, 3}, 0}, {ls::Shape{3, 0}, 1}}) {
    const ls::Tensor x = ls::ones(shape, {.requires_grad = true});
    for (const bool keepdim : {false, true}) {
      const ls::Tensor y = ls::prod(x, dim, keepdim);
      CHECK(ls::equal(y, ls::ones(y.shape())));
      REQUIRE(y.requires_grad());
      ls::sum(y).backward();
      CHECK(x.grad().shape() == shape);
    }
    CHECK(ls::prod(x).item<double>() == 1);
    CHECK(ls::prod(x).requires_grad());
  }
  CHECK(ls::prod(ls::ones({0}, {.dtype = ls::kInt32})).dtype() == ls::kInt64);
  CHECK(ls::prod(ls::ones({0}, {.dtype = ls::kFloat16})).dtype() == ls::kFloat16);
}
