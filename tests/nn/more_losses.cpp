// The losses of breadth.safetensors: values and gradients of PyTorch, derivatives, half precision, and errors.
#include <functional>

#include "support.h"

namespace {

using nn::KLDivReduction;
using nn::Reduction;
using Inputs = std::vector<ls::Tensor>;
template <class R>
using LossFunction = std::function<ls::Tensor(const Inputs& x, R reduction)>;

// Compares the losses for all reductions, and the gradients of the mean, in f32 and f64; in f16 roughly.
template <class R>
void check(const std::string& name, const std::vector<std::pair<const char*, R>>& reductions,
           const LossFunction<R>& loss) {
  const ls::StateDict dict = golden("breadth");
  for (const std::string& tag : float_tags()) {
    const std::string prefix = name + "." + tag + "/";
    INFO(prefix);
    const Tolerance allowed = tag == "f32" ? Tolerance{1e-5, 2e-6} : Tolerance{1e-12, 1e-13};
    Inputs inputs, half;
    for (int i = 0; dict.contains(prefix + "x" + std::to_string(i)); ++i) {
      inputs.push_back(dict.at(prefix + "x" + std::to_string(i)).clone());
      half.push_back(inputs.back().is_floating_point() ? inputs.back().to(ls::kHalf) : inputs.back());
      if (dict.contains(prefix + "grad_x" + std::to_string(i))) inputs.back().requires_grad_();
    }
    for (const auto& [key, reduction] : reductions) {
      const ls::Tensor value = loss(inputs, reduction);
      check_close(value, dict.at(prefix + key), key, allowed);
      const ls::Tensor rough = loss(half, reduction);
      CHECK(rough.dtype() == ls::kHalf);
      CHECK(ls::allclose(rough.to(value.dtype()), value, 5e-3, 5e-3));
      if (key != std::string("mean")) continue;
      value.backward();
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (inputs[i].requires_grad())
          check_close(inputs[i].grad(), dict.at(prefix + "grad_x" + std::to_string(i)), "gradient", allowed);
      }
    }
  }
}

const std::vector<std::pair<const char*, Reduction>> kReductions = {
    {"none", Reduction::kNone}, {"mean", Reduction::kMean}, {"sum", Reduction::kSum}};

void check_gradients(const std::function<ls::Tensor(const Inputs&)>& loss, const Inputs& inputs) {
  CHECK(ls::autograd::gradcheck([&](const Inputs& in) { return ls::sum(ls::exp(loss(in))); }, inputs,
                                {.second_order = true}));
}

}  // namespace

TEST_CASE("losses give PyTorch's values and gradients") {
  check<Reduction>("smooth_l1", kReductions,
                   [](auto& x, Reduction r) { return nn::SmoothL1Loss({.reduction = r})(x[0], x[1]); });
  check<Reduction>("smooth_l1_beta", kReductions,
                   [](auto& x, Reduction r) { return nn::smooth_l1_loss(x[0], x[1], {.reduction = r, .beta = 0.3}); });
  check<Reduction>("huber", kReductions,
                   [](auto& x, Reduction r) { return nn::HuberLoss({.reduction = r, .delta = 0.7})(x[0], x[1]); });
  check<Reduction>("triplet", kReductions,
                   [](auto& x, Reduction r) { return nn::TripletMarginLoss({.reduction = r})(x[0], x[1], x[2]); });
  check<Reduction>("triplet_swap", kReductions, [](auto& x, Reduction r) {
    return nn::triplet_margin_loss(x[0], x[1], x[2], {.margin = 2, .p = 1, .swap = true, .reduction = r});
  });
  check<Reduction>("cosine", kReductions, [](auto& x, Reduction r) {
    return nn::CosineEmbeddingLoss({.margin = 0.2, .reduction = r})(x[0], x[1], x[2]);
  });
  const std::vector<std::pair<const char*, KLDivReduction>> all = {{"none", KLDivReduction::kNone},
                                                                   {"mean", KLDivReduction::kMean},
                                                                   {"sum", KLDivReduction::kSum},
                                                                   {"batchmean", KLDivReduction::kBatchMean}};
  check<KLDivReduction>("kl_div", all,
                        [](auto& x, KLDivReduction r) { return nn::KLDivLoss({.reduction = r})(x[0], x[1]); });
  check<KLDivReduction>("kl_div_log", all, [](auto& x, KLDivReduction r) {
    return nn::kl_div(x[0], x[1], {.reduction = r, .log_target = true});
  });
}

TEST_CASE("losses have the right first and second derivatives") {
  ls::manual_seed(8);
  const auto n = [] { return ls::randn({3, 4}, {.dtype = ls::kFloat64}).requires_grad_(); };
  check_gradients([](auto& x) { return nn::smooth_l1_loss(x[0], x[1]); }, {n(), n()});
  check_gradients([](auto& x) { return nn::huber_loss(x[0], x[1], {.delta = 0.5}); }, {n(), n()});
  check_gradients([](auto& x) { return nn::kl_div(x[0], ls::exp(x[1])); }, {n(), n()});
  check_gradients([](auto& x) { return nn::triplet_margin_loss(x[0], x[1], x[2]); }, {n(), n(), n()});
  const ls::Tensor signs = ls::tensor({1, -1, 1});
  check_gradients([&](auto& x) { return nn::cosine_embedding_loss(x[0], x[1], signs); }, {n(), n()});
}

TEST_CASE("a beta of 0 is the absolute difference, and operands that do not fit are refused") {
  const ls::Tensor x = ls::tensor({1.0, -2.0}), y = ls::tensor({0.5, 1.0});
  CHECK(ls::equal(nn::smooth_l1_loss(x, y, {.beta = 0}), nn::l1_loss(x, y)));
  CHECK(contains(error_of([&] { nn::smooth_l1_loss(x, y, {.beta = -1}); }), "smooth_l1_loss: beta is -1"));
  CHECK(contains(error_of([&] { nn::huber_loss(x, y, {.delta = 0}); }), "huber_loss: delta is 0"));
  CHECK(contains(error_of([&] { nn::huber_loss(x, y.to(ls::kFloat64)); }), "operands are (2) f32 cpu and (2) f64 cpu"));
  CHECK(contains(error_of([&] { nn::kl_div(x, ls::ones({1})); }), "kl_div: shapes differ"));
  CHECK(contains(error_of([&] { nn::triplet_margin_loss(x, y, x, {.margin = 0}); }), "margin is 0"));
  CHECK(contains(error_of([&] { nn::cosine_embedding_loss(x, y, ls::ones({2})); }), "target (2) f32 cpu"));
  const auto warnings = warnings_of([&] { nn::huber_loss(ls::ones({2, 2}), x); });
  REQUIRE(warnings.size() == 1);
  CHECK(contains(warnings[0], "huber_loss: shapes differ: x is (2, 2)"));
}
