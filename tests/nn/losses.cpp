#include "support.h"

#include <functional>
#include <limits>
#include <memory>

namespace {

using LossFunction = std::function<ls::Tensor(const ls::Tensor& x, const ls::Tensor& target, nn::Reduction reduction)>;

// Compares value and gradients for the three reductions with a case of losses.safetensors.
void check_case(const ls::StateDict& dict, const std::string& prefix, const LossFunction& loss) {
  INFO(prefix);
  const ls::Tensor x = dict.at(prefix + "x"), target = dict.at(prefix + "target");
  check_close(loss(x, target, nn::Reduction::kNone), dict.at(prefix + "none"), "none");
  for (const auto& [name, reduction] : {std::pair{"mean", nn::Reduction::kMean}, {"sum", nn::Reduction::kSum}}) {
    const ls::Tensor leaf = x.clone();
    leaf.requires_grad_();
    const ls::Tensor value = loss(leaf, target, reduction);
    check_close(value, dict.at(prefix + name), name);
    value.backward();
    check_close(leaf.grad(), dict.at(prefix + "grad_x_" + name), std::string("grad_x_") + name);
  }
}

struct ClassOptions {
  std::int64_t ignore_index = -100;
  double label_smoothing = 0.0;
};

// Checks first and second derivatives by x, and also by the target if it requires grad.
void check_gradients(const LossFunction& loss, const ls::Tensor& x, const ls::Tensor& target) {
  for (const nn::Reduction reduction : {nn::Reduction::kMean, nn::Reduction::kSum, nn::Reduction::kNone}) {
    const auto f = [&](const std::vector<ls::Tensor>& in) {
      return ls::sum(ls::exp(loss(in[0], in.size() > 1 ? in[1] : target, reduction)));
    };
    std::vector<ls::Tensor> inputs = {x};
    if (target.requires_grad()) inputs.push_back(target);
    CHECK(ls::autograd::gradcheck(f, inputs, {.second_order = true}));
  }
}

ls::Tensor doubles(const ls::Tensor& t, bool requires_grad = true) {
  const ls::Tensor copy = t.to(ls::kFloat64).clone();
  return copy.requires_grad_(requires_grad);
}

}  // namespace

TEST_CASE("pointwise losses give PyTorch's values and gradients, also on special values") {
  const ls::StateDict dict = golden("losses");
  for (const std::string& tag : float_tags()) {
    const std::string end = "." + tag + "/";
    for (const char* name : {"bce", "bce_soft_target", "bce_edges"}) {
      check_case(dict, name + end, [](auto& x, auto& y, auto r) { return nn::BCELoss({.reduction = r})(x, y); });
    }
    for (const char* name : {"bce_with_logits", "bce_with_logits_edges", "bce_with_logits_pos_weight",
                             "bce_with_logits_pos_weight_edges"}) {
      const std::string key = name + end + "pos_weight";
      const ls::Tensor weight = dict.contains(key) ? dict.at(key) : ls::Tensor();
      check_case(dict, name + end, [&](auto& x, auto& y, auto r) {
        return nn::BCEWithLogitsLoss({.reduction = r, .pos_weight = weight})(x, y);
      });
    }
    check_case(dict, "mse" + end, [](auto& x, auto& y, auto r) { return nn::MSELoss({.reduction = r})(x, y); });
    for (const char* name : {"l1", "l1_equal"}) {
      check_case(dict, name + end, [](auto& x, auto& y, auto r) { return nn::L1Loss({.reduction = r})(x, y); });
    }
  }
}

TEST_CASE(
    "classification losses give PyTorch's values and gradients for classes, probabilities, weights and smoothing") {
  const ls::StateDict dict = golden("losses");
  const std::vector<std::pair<std::string, ClassOptions>> cases = {
      {"ce", {}},
      {"ce_edges", {}},
      {"ce_ignore_default", {}},
      {"ce_ignore_1", {.ignore_index = 1}},
      {"ce_all_ignored", {}},
      {"ce_smoothing", {.label_smoothing = 0.1}},
      {"ce_weight", {}},
      {"ce_weight_ignore", {}},
      {"ce_weight_smoothing", {.label_smoothing = 0.2}},
      {"ce_weight_smoothing_ignore", {.label_smoothing = 0.2}},
      {"ce_probabilities", {}},
      {"ce_probabilities_smoothing", {.label_smoothing = 0.1}},
      {"ce_probabilities_weight", {}},
      {"ce_probabilities_weight_smoothing", {.label_smoothing = 0.1}},
      {"ce_2d", {}},
      {"ce_single", {}},
      {"nll", {}},
      {"nll_weight", {}},
      {"nll_ignore", {}},
      {"nll_weight_ignore", {}}};
  for (const std::string& tag : float_tags()) {
    for (const auto& entry : cases) {
      const auto& name = entry.first;
      const auto& options = entry.second;
      const std::string prefix = name + "." + tag + "/";
      const ls::Tensor weight = dict.contains(prefix + "weight") ? dict.at(prefix + "weight") : ls::Tensor();
      check_case(dict, prefix, [&](const ls::Tensor& x, const ls::Tensor& y, nn::Reduction r) {
        if (name.starts_with("nll"))
          return nn::NLLLoss({.reduction = r, .ignore_index = options.ignore_index, .weight = weight})(x, y);
        return nn::CrossEntropyLoss({.reduction = r,
                                     .ignore_index = options.ignore_index,
                                     .label_smoothing = options.label_smoothing,
                                     .weight = weight})(x, y);
      });
    }
  }
}

TEST_CASE("losses have the right first and second derivatives, by input and by target") {
  ls::manual_seed(4);
  const ls::Tensor x = doubles(ls::randn({4, 3})), p = doubles(ls::rand({4, 3}) * 0.8 + 0.1);
  for (const bool by_target : {false, true}) {
    const ls::Tensor y = doubles(ls::rand({4, 3}) * 0.8 + 0.1, by_target);
    check_gradients([](auto& a, auto& b, auto r) { return nn::BCELoss({.reduction = r})(a, b); }, p, y);
    check_gradients([](auto& a, auto& b, auto r) { return nn::BCEWithLogitsLoss({.reduction = r})(a, b); }, x, y);
    const ls::Tensor weight = ls::tensor({0.5, 2.0, 3.0}, {.dtype = ls::kFloat64});
    check_gradients(
        [&](auto& a, auto& b, auto r) { return nn::BCEWithLogitsLoss({.reduction = r, .pos_weight = weight})(a, b); },
        x, y);
    check_gradients([](auto& a, auto& b, auto r) { return nn::MSELoss({.reduction = r})(a, b); }, x, y);
    check_gradients([](auto& a, auto& b, auto r) { return nn::L1Loss({.reduction = r})(a, b); }, x, y);
    check_gradients(
        [&](auto& a, auto& b, auto r) {
          return nn::CrossEntropyLoss({.reduction = r, .label_smoothing = 0.1, .weight = weight})(a, b);
        },
        x, y);
  }
  const ls::Tensor labels = ls::tensor({0, 2, -100, 1});
  const ls::Tensor weight = ls::tensor({0.5, 2.0, 3.0}, {.dtype = ls::kFloat64});
  check_gradients([](auto& a, auto& b, auto r) { return nn::CrossEntropyLoss({.reduction = r})(a, b); }, x, labels);
  check_gradients(
      [&](auto& a, auto& b, auto r) {
        return nn::CrossEntropyLoss({.reduction = r, .label_smoothing = 0.2, .weight = weight})(a, b);
      },
      x, labels);
  check_gradients([](auto& a, auto& b, auto r) { return nn::NLLLoss({.reduction = r})(a, b); }, x, labels);
}

TEST_CASE("a loss does not depend on whether its operands are views, and large batches add up") {
  ls::manual_seed(6);
  const ls::Tensor wide = ls::rand({7, 5}), y = ls::rand({5, 7});
  CHECK(ls::equal(nn::BCELoss()(wide.t(), y), nn::BCELoss()(wide.t().contiguous(), y)));
  CHECK(ls::equal(nn::MSELoss()(wide.t(), y), nn::MSELoss()(wide.t().contiguous(), y)));
  const ls::Tensor x = ls::randn({10007}), target = ls::randn({10007});
  const double mean = ls::mean((x - target) * (x - target)).item<double>();
  CHECK(nn::MSELoss()(x, target).item<double>() == doctest::Approx(mean).epsilon(1e-5));
  CHECK(nn::MSELoss({.reduction = nn::Reduction::kSum})(x, target).item<double>() ==
        doctest::Approx(mean * 10007).epsilon(1e-5));
  const ls::Tensor labels = ls::randint(0, 5, {7});
  CHECK(ls::equal(nn::CrossEntropyLoss()(y.t(), labels), nn::CrossEntropyLoss()(y.t().contiguous(), labels)));
}

TEST_CASE("BCELoss names the value that is not a probability, and its position") {
  const ls::Tensor x = ls::full({3, 2}, 0.5), y = ls::zeros({3, 2});
  x.select(0, 2).select(0, 1).fill_(1.5);
  const std::string text = error_of([&] { nn::BCELoss()(x, y); });
  CHECK(text ==
        "bce_loss: x at (2, 1) is 1.5, expected 0 to 1; x is (3, 2) f32 cpu\n"
        "For logits use BCEWithLogitsLoss, or apply sigmoid first");
  x.fill_(0.5);
  x.select(0, 0).select(0, 1).fill_(std::numeric_limits<double>::quiet_NaN());
  CHECK(contains(error_of([&] { nn::BCELoss({.reduction = nn::Reduction::kNone})(x, y); }), "x at (0, 1) is nan"));
  const ls::Tensor long_one = ls::full({5000}, 0.5);
  long_one.select(0, 4999).fill_(-0.1);
  CHECK(contains(error_of([&] { nn::BCELoss()(long_one, ls::zeros({5000})); }), "x at (4999) is -0.1"));
}

TEST_CASE("a class outside the range is named with its position and the number of classes") {
  const ls::Tensor x = ls::zeros({3, 4});
  CHECK(error_of([&] {
          nn::CrossEntropyLoss()(x, ls::tensor({0, 4, 1}));
        }) == "cross_entropy: the target at (1) is class 4, expected 0 to 3: there are 4 classes");
  CHECK(error_of([&] {
          nn::NLLLoss()(x, ls::tensor({0, 1, -1}));
        }) == "nll_loss: the target at (2) is class -1, expected 0 to 3: there are 4 classes");
  CHECK(error_of([&] {
          nn::CrossEntropyLoss()(ls::zeros({2, 4, 3}), ls::tensor({{0, 1, 2}, {3, 9, 0}}));
        }) == "cross_entropy: the target at (1, 1) is class 9, expected 0 to 3: there are 4 classes");
}

TEST_CASE("the errors for operands that do not fit show both, with the fix where it is usual") {
  const ls::Tensor x = ls::full({10, 1}, 0.5);
  CHECK(error_of([&] { nn::BCELoss()(x, ls::zeros({10})); }) ==
        "bce_loss: shapes differ: x is (10, 1) f32 cpu, target is (10) f32 cpu\nreshape one of them, for example "
        "target.unsqueeze(1)");
  CHECK(error_of([&] {
          nn::BCELoss()(x, ls::zeros({10, 1}, {.dtype = ls::kInt64}));
        }) == "bce_loss: dtypes differ: x is (10, 1) f32 cpu, target is (10, 1) i64 cpu\nconvert one with .to(...)");
  CHECK(error_of([&] {
          nn::MSELoss()(x, ls::zeros({10, 1}, {.device = "cpu:1"}));
        }) == "mse_loss: devices differ: x is (10, 1) f32 cpu, target is (10, 1) f32 cpu:1");
  CHECK(contains(error_of([&] { nn::BCEWithLogitsLoss({.pos_weight = ls::ones({3})})(x, x); }),
                 "pos_weight is (3) f32 cpu"));
  CHECK(error_of([&] {
          nn::CrossEntropyLoss()(ls::zeros({2, 3}), ls::tensor({0, 1, 2}));
        }) == "cross_entropy: x is (2, 3) f32 cpu, target is (3) i64 cpu, expected (2)");
  CHECK(contains(error_of([&] {
                   nn::CrossEntropyLoss({.weight = ls::ones({2})})(ls::zeros({2, 3}), ls::tensor({0, 1}));
                 }),
                 "weight is (2) f32 cpu, expected (3) f32 cpu"));
  CHECK(error_of([&] { nn::CrossEntropyLoss({.label_smoothing = 1.5})(x, ls::tensor({0})); }) ==
        "cross_entropy: label_smoothing is 1.5, expected 0 to 1");
  CHECK(contains(error_of([&] {
                   nn::CrossEntropyLoss()(ls::zeros({2, 3}, {.dtype = ls::kInt64}), ls::tensor({0, 1}));
                 }),
                 "expected f32 or f64"));
}

TEST_CASE("MSELoss and L1Loss broadcast with a warning, once for the same shapes") {
  std::vector<std::string> seen;
  ls::on_warning([&](const std::string& message) { seen.push_back(message); });
  const ls::Tensor x = ls::ones({2, 1}), y = ls::tensor({1.0, 3.0});
  CHECK(nn::MSELoss()(x, y).item<double>() == 2.0);
  CHECK(nn::MSELoss()(x, y).item<double>() == 2.0);
  CHECK(nn::L1Loss()(x, y).item<double>() == 1.0);
  CHECK(nn::MSELoss()(x, ls::ones({3})).item<double>() == 0.0);
  ls::on_warning({});
  REQUIRE(seen.size() == 3);
  CHECK(seen[0] ==
        "mse_loss: shapes differ: x is (2, 1) f32 cpu, target is (2) f32 cpu; both broadcast to (2, 2), which is "
        "rarely meant\nReshape one of them, for example target.unsqueeze(1)");
  CHECK(seen[1].starts_with("l1_loss: shapes differ"));
  CHECK(contains(seen[2], "both broadcast to (2, 3)"));
  CHECK(contains(error_of([] { nn::MSELoss()(ls::ones({2}), ls::ones({3})); }), "mse_loss"));
}

TEST_CASE("binary cross entropy of subnormal probabilities is that of PyTorch") {
  const ls::Tensor x = ls::tensor({1e-38, 1e-40, 1e-43, 0.25}).to(ls::kFloat32);
  const ls::Tensor loss = ls::nn::binary_cross_entropy(x, ls::ones({4}), {.reduction = ls::nn::Reduction::kNone});
  check_close(loss, ls::tensor({87.4982, 92.1034, 99.0163, 1.386294}).to(ls::kFloat32), "loss", {1e-5, 0});
}

TEST_CASE("the mean over no elements is NaN, the sum 0") {
  const ls::Tensor none = ls::zeros({0, 3});
  CHECK(std::isnan(nn::MSELoss()(none, none).item<double>()));
  CHECK(nn::MSELoss({.reduction = nn::Reduction::kSum})(none, none).item<double>() == 0);
  CHECK(std::isnan(nn::CrossEntropyLoss()(none, ls::zeros({0}, {.dtype = ls::kInt64})).item<double>()));
}

TEST_CASE("a weight that was changed in place between forward and backward is detected") {
  const ls::Tensor x = numbers({2, 3}, {.requires_grad = true}), y = ls::zeros({2, 3}), classes = ls::tensor({0, 2});
  const ls::Tensor weight = ls::ones({3});
  for (const ls::Tensor& loss : {nn::CrossEntropyLoss({.weight = weight})(x, classes),
                                 nn::NLLLoss({.weight = weight})(ls::log_softmax(x, 1), classes),
                                 nn::BCEWithLogitsLoss({.pos_weight = weight})(x, y)}) {
    weight.fill_(2);
    CHECK(contains(error_of([&] { loss.backward(); }), "changed in place"));
  }
}
