// Gradients of reductions in special cases: 0-d and empty tensors, NaN, ties, norms, variances of too few elements.
// Values are those of PyTorch 2.15.
#include <functional>

#include "tests/support/testing.h"

namespace {

using Doubles = std::vector<double>;
using Function = std::function<ls::Tensor(const ls::Tensor&)>;
struct Named {
  std::string name;
  Function run;
};

ls::Tensor f64(std::initializer_list<double> values) { return ls::tensor(values, {.dtype = ls::kFloat64}); }

// Returns the gradient of the sum of f(x).
ls::Tensor gradient(const ls::Tensor& values, const Function& f) {
  const ls::Tensor x = values.clone().requires_grad_();
  ls::sum(f(x)).backward();
  return x.grad();
}

void check_gradient(const ls::Tensor& values, const Function& f, const Doubles& want) {
  const ls::Tensor have = gradient(values, f);
  check_close(have, ls::tensor(want, {.dtype = ls::kFloat64}).view(have.shape()), "gradient");
}

// A reduction over one dimension, with its value and gradient for a 0-d tensor of 2.5.
struct Reduction {
  std::string name;
  std::function<ls::Tensor(const ls::Tensor&, std::int64_t dim, bool keepdim)> run;
  double value, slope;
};
const std::vector<Reduction> reductions = {
    {"sum", [](const ls::Tensor& x, std::int64_t d, bool keep) { return ls::sum(x, {d}, keep); }, 2.5, 1},
    {"mean", [](const ls::Tensor& x, std::int64_t d, bool keep) { return ls::mean(x, {d}, keep); }, 2.5, 1},
    {"amax", [](const ls::Tensor& x, std::int64_t d, bool keep) { return ls::amax(x, {d}, keep); }, 2.5, 1},
    {"amin", [](const ls::Tensor& x, std::int64_t d, bool keep) { return ls::amin(x, {d}, keep); }, 2.5, 1},
    {"max", [](const ls::Tensor& x, std::int64_t d, bool keep) { return ls::max(x, d, keep).first; }, 2.5, 1},
    {"min", [](const ls::Tensor& x, std::int64_t d, bool keep) { return ls::min(x, d, keep).first; }, 2.5, 1},
    {"logsumexp", [](const ls::Tensor& x, std::int64_t d, bool keep) { return ls::logsumexp(x, {d}, keep); }, 2.5, 1},
    {"norm 2", [](const ls::Tensor& x, std::int64_t d, bool keep) { return ls::norm(x, 2, {d}, keep); }, 2.5, 1},
    {"norm 1", [](const ls::Tensor& x, std::int64_t d, bool keep) { return ls::norm(x, 1, {d}, keep); }, 2.5, 1},
    {"norm 3", [](const ls::Tensor& x, std::int64_t d, bool keep) { return ls::norm(x, 3, {d}, keep); }, 2.5, 1},
    {"norm inf", [](const ls::Tensor& x, std::int64_t d, bool keep) { return ls::norm(x, kInf, {d}, keep); }, 2.5, 1},
    {"var", [](const ls::Tensor& x, std::int64_t d, bool keep) { return ls::var(x, {d}, {.keepdim = keep}); }, kNan,
     kNan},
    {"var 0",
     [](const ls::Tensor& x, std::int64_t d, bool keep) { return ls::var(x, {d}, {.correction = 0, .keepdim = keep}); },
     0, 0},
    {"std", [](const ls::Tensor& x, std::int64_t d, bool keep) { return ls::std(x, {d}, {.keepdim = keep}); }, kNan,
     kNan},
    {"std 0",
     [](const ls::Tensor& x, std::int64_t d, bool keep) { return ls::std(x, {d}, {.correction = 0, .keepdim = keep}); },
     0, 0},
    {"cumsum", [](const ls::Tensor& x, std::int64_t d, bool) { return ls::cumsum(x, d); }, 2.5, 1},
    {"softmax", [](const ls::Tensor& x, std::int64_t d, bool) { return ls::softmax(x, d); }, 1, 0},
    {"log_softmax", [](const ls::Tensor& x, std::int64_t d, bool) { return ls::log_softmax(x, d); }, 0, 0}};

}  // namespace

TEST_CASE("a dimension of a 0-d tensor reduces its only element: values and gradients") {
  for (const Reduction& reduction : reductions) {
    for (const std::int64_t dim : {0, -1}) {
      for (const bool keepdim : {false, true}) {
        INFO(reduction.name, " ", dim, " ", keepdim);
        const ls::Tensor x = ls::tensor(2.5, {.dtype = ls::kFloat64, .requires_grad = true});
        const ls::Tensor y = reduction.run(x, dim, keepdim);
        CHECK(y.dim() == 0);
        check_close(y, ls::tensor(reduction.value, {.dtype = ls::kFloat64}), "value");
        y.backward();
        check_close(x.grad(), ls::tensor(reduction.slope, {.dtype = ls::kFloat64}), "gradient");
      }
    }
    CHECK(contains(error_of([&] { reduction.run(ls::tensor(2.5), 1, false); }), "is outside [-1, 1)"));
  }
}

TEST_CASE("reductions of empty tensors: the value over no elements, and an empty gradient") {
  // The value over no elements for each reduction, NaN included; empty where the reduction is an error.
  const std::vector<std::pair<std::string, std::optional<double>>> over_nothing = {
      {"sum", 0},           {"mean", kNan}, {"amax", {}},    {"amin", {}},  {"max", {}},
      {"min", {}},          {"norm 2", 0},  {"norm 1", 0},   {"norm 3", 0}, {"norm inf", {}},
      {"logsumexp", -kInf}, {"var", kNan},  {"var 0", kNan}, {"std", kNan}, {"std 0", kNan}};
  for (const auto& each : over_nothing) {
    const auto& name = each.first;
    const std::optional<double>& value = each.second;
    const auto found = std::ranges::find(reductions, name, &Reduction::name);
    REQUIRE(found != reductions.end());
    for (const bool keepdim : {false, true}) {
      INFO(name, " ", keepdim);
      for (const std::int64_t dim : {1, -1}) {
        const ls::Tensor x = ls::zeros({2, 0}, {.dtype = ls::kFloat64, .requires_grad = true});
        if (!value) {
          CHECK(contains(error_of([&] { found->run(x, dim, keepdim); }), "no elements to reduce in (2, 0)"));
          continue;
        }
        const ls::Tensor y = found->run(x, dim, keepdim);
        const ls::Shape shape = keepdim ? ls::Shape{2, 1} : ls::Shape{2};
        check_close(y, ls::full(shape, *value, {.dtype = ls::kFloat64}), "value");
        y.backward(ls::ones_like(y));
        CHECK(x.grad().shape() == ls::Shape{2, 0});
      }
      const ls::Tensor x = ls::zeros({2, 0}, {.dtype = ls::kFloat64, .requires_grad = true});
      const ls::Tensor y = found->run(x, 0, keepdim);
      CHECK(y.shape() == (keepdim ? ls::Shape{1, 0} : ls::Shape{0}));
      y.backward(ls::ones_like(y));
      CHECK(x.grad().shape() == ls::Shape{2, 0});
    }
  }
  CHECK(ls::logsumexp(ls::zeros({0}), {}).item<double>() == -kInf);
  CHECK(ls::logsumexp(ls::zeros({0, 3}), 0).to_vector<double>() == Doubles(3, -kInf));
}

TEST_CASE("max and min give the gradient to NaN elements; amax and amin have none for their slice") {
  const ls::Tensor x = f64({1, kNan, 3, kNan, 1, 3, 3, 1}).view({2, 4});
  const Function max = [](const ls::Tensor&x) { return ls::max(x); },
                 min = [](const ls::Tensor&x) { return ls::min(x); };
  check_gradient(x, max, {0, 0.5, 0, 0.5, 0, 0, 0, 0});
  check_gradient(x, min, {0, 0.5, 0, 0.5, 0, 0, 0, 0});
  check_gradient(x[1], max, {0, 0.5, 0.5, 0});
  check_gradient(x, [&](const ls::Tensor& x) { return ls::max(x) * kInf; }, {0, kInf, 0, kInf, 0, 0, 0, 0});
  check_gradient(x, [](const ls::Tensor& x) { return ls::amax(x, {1}); }, {kNan, kNan, kNan, kNan, 0, 0.5, 0.5, 0});
  check_gradient(x, [](const ls::Tensor& x) { return ls::amin(x, {1}); }, {kNan, kNan, kNan, kNan, 0.5, 0, 0, 0.5});
  check_gradient(x, [](const ls::Tensor& x) { return ls::max(x, 1).first; }, {0, 1, 0, 0, 0, 1, 0, 0});
  check_gradient(x, [](const ls::Tensor& x) { return ls::min(x, 1, true).first; }, {0, 1, 0, 0, 1, 0, 0, 0});
}

TEST_CASE("the gradient of clamp is 1 strictly between its limits and 0 on them, beyond them and for NaN") {
  const ls::Tensor x = f64({-2, -1, 0, 1, 2, kNan, kInf, -kInf});
  const auto clamp = [](std::optional<ls::Scalar> lo, std::optional<ls::Scalar> hi) -> Function {
    return [=](const ls::Tensor& x) { return ls::clamp(x, lo, hi); };
  };
  check_gradient(x, clamp(-1, 1), {0, 0, 1, 0, 0, 0, 0, 0});
  check_gradient(x, clamp(1, -1), {0, 0, 0, 0, 0, 0, 0, 0});
  check_gradient(x, clamp({}, 1), {1, 1, 1, 0, 0, 0, 0, 1});
  check_gradient(x, clamp(0, {}), {0, 0, 0, 1, 1, 0, 1, 0});
  check_gradient(x, clamp(kNan, 1), Doubles(8, 0));
  check_gradient(f64({-1, 0, 2}), [](const ls::Tensor& x) { return ls::clamp_min(x, 0) * 3; }, {0, 0, 3});
  check_gradient(f64({-1, 0, 2}), [](const ls::Tensor& x) { return ls::clamp_max(x, 0) * 3; }, {3, 0, 0});
  const ls::Tensor f32 = ls::tensor({0.1, 0.2, 0.3}).requires_grad_();
  ls::sum(ls::clamp(f32, 0.1, 0.3)).backward();
  CHECK(f32.grad().to_vector<double>() == Doubles{0, 1, 0});
}

TEST_CASE("relu and clamp stop a gradient, even an infinite one") {
  const ls::Tensor x = f64({-1, 0, 1});
  check_gradient(x, [](const ls::Tensor& x) { return ls::sqrt(ls::relu(x)); }, {0, 0, 0.5});
  check_gradient(x, [](const ls::Tensor& x) { return ls::sqrt(ls::clamp_min(x, 0)); }, {0, 0, 0.5});
  const ls::Tensor leaf = x.clone().requires_grad_();
  const ls::Tensor first = ls::autograd::grad(ls::sum(ls::sqrt(ls::relu(leaf))), leaf, {.create_graph = true});
  CHECK(ls::autograd::grad(ls::sum(first), leaf)[2].item<double>() == -0.25);
}

TEST_CASE("variances with too few elements have PyTorch's infinities, with their signs") {
  const auto var = [](const ls::Shape& dims, std::int64_t correction) -> Function {
    return [=](const ls::Tensor& x) { return ls::var(x, dims, {.correction = correction}); };
  };
  const ls::Tensor x = f64({0, 1, 2}), same = f64({2, 2, 2}), one = f64({7});
  for (const std::int64_t correction : {3, 4}) {
    CHECK(var({0}, correction)(x).item<double>() == kInf);
    CHECK(std::isnan(var({0}, correction)(same).item<double>()));
    check_gradient(x, var({}, correction), {kInf, kNan, kInf});  // over all elements: infinite, without a sign
    check_gradient(same, var({}, correction), {kNan, kNan, kNan});
  }
  check_gradient(x, var({0}, 3), {-kInf, kNan, kInf});
  check_gradient(x, var({0}, 4), {2, -0.0, -2});  // the divisor is negative
  check_gradient(x, var({-1}, 4), {2, -0.0, -2});
  check_gradient(one, var({0}, 1), {kNan});
  check_gradient(one, var({0}, 2), {-0.0});
  check_gradient(one, var({}, 1), {kNan});
  check_gradient(x, [](const ls::Tensor& x) { return ls::std(x, {0}, {.correction = 4}); }, {0, -0.0, -0.0});
  check_gradient(x, [](const ls::Tensor& x) { return ls::std(x, {0}, {.correction = 3}); }, {kNan, kNan, kNan});
}

TEST_CASE("the gradient of std is that of the square root of var, and 0 where std is 0") {
  check_gradient(f64({0, 1, 2}), [](const ls::Tensor& x) { return ls::std(x); }, {-0.5, 0, 0.5});
  check_gradient(f64({2, 2, 2}), [](const ls::Tensor& x) { return ls::std(x); }, {0, 0, 0});
  for (const ls::Shape& dims : {ls::Shape{}, ls::Shape{0}, ls::Shape{1}, ls::Shape{0, 2}}) {
    const ls::Tensor x = numbers({2, 3, 2}, {.dtype = ls::kFloat64, .requires_grad = true});
    CHECK(ls::autograd::gradcheck([&](const auto& in) { return ls::std(in[0], dims, {.correction = 0}); }, {x},
                                  {.second_order = true}));
  }
}

TEST_CASE("p-norms: first and second derivatives, and 0 where the norm or an element is 0") {
  for (const double p : {1.0, 2.0, 3.0, 1.5, 0.5, -1.0, 4.0, kInf, -kInf}) {
    for (const ls::Shape& dims : {ls::Shape{}, ls::Shape{0}, ls::Shape{1}, ls::Shape{0, 2}}) {
      INFO(p, " ", dims.to_string());
      const ls::Tensor x = numbers({2, 3, 2}, {.dtype = ls::kFloat64, .requires_grad = true});
      CHECK(ls::autograd::gradcheck([&](const auto& in) { return ls::norm(in[0], p, dims, true); }, {x},
                                    {.second_order = true}));
    }
    const Function norm = [p](const ls::Tensor& x) { return ls::norm(x, p); };
    check_gradient(f64({0, 0}), norm, {0, 0});
    CHECK(gradient(f64({0, 3}), norm)[0].item<double>() == 0);
  }
  check_gradient(f64({-2, 1, 2}), [](const ls::Tensor& x) { return ls::norm(x, kInf); }, {-0.5, 0, 0.5});
  check_gradient(f64({-2, kNan, 2}), [](const ls::Tensor& x) { return ls::norm(x, kInf); }, {0, 0, 0});
  const ls::Tensor x = f64({0, 3}).requires_grad_();
  CHECK(ls::norm(x, 0).item<double>() == 1);
  CHECK(ls::norm(x, 0).requires_grad());  // the gradient is 0
}
