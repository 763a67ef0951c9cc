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
  CHECK(contains(error_of([&] { nn::huber_loss(x, y.to(ls::kFloat64)); }),
                 "dtypes differ: x is (2) f32 cpu, target is (2) f64 cpu"));
  CHECK(contains(error_of([&] { nn::triplet_margin_loss(x, y, x, {.margin = 0}); }), "margin is 0"));
  CHECK(contains(error_of([&] { nn::cosine_embedding_loss(x, y, ls::ones({2})); }), "target (2) f32 cpu"));
  const auto warnings = warnings_of([&] { nn::huber_loss(ls::ones({2, 2}), x); });
  REQUIRE(warnings.size() == 1);
  CHECK(contains(warnings[0], "huber_loss: shapes differ: x is (2, 2)"));
}

TEST_CASE("kl_div broadcasts with a warning, and kBatchMean divides by the size of x's dimension 0") {
  const ls::Tensor x = ls::log_softmax(numbers({3, 4}, {.dtype = ls::kFloat64}), 1).detach();
  const ls::Tensor y = ls::softmax(numbers({4}, {.dtype = ls::kFloat64}, 2), 0).detach();
  for (const auto reduction :
       {KLDivReduction::kNone, KLDivReduction::kMean, KLDivReduction::kSum, KLDivReduction::kBatchMean}) {
    ls::Tensor leaf = x.clone().requires_grad_(), want = x.clone().requires_grad_(), loss;
    const auto warnings = warnings_of([&] { loss = nn::kl_div(leaf, y, {.reduction = reduction}); });
    CHECK(warnings.size() <= 1);
    const ls::Tensor expected = nn::kl_div(want, y.expand({3, 4}), {.reduction = reduction});
    CHECK(same_bits(loss, expected));
    ls::sum(loss).backward();
    ls::sum(expected).backward();
    CHECK(same_bits(leaf.grad(), want.grad()));
  }
  const auto warnings = warnings_of([&] { nn::kl_div(x.narrow(1, 0, 3), y.narrow(0, 0, 3)); });
  REQUIRE(warnings.size() == 1);
  CHECK(contains(warnings[0], "kl_div: shapes differ: x is (3, 3) f64 cpu, target is (3) f64 cpu"));
  // x broadcasts as well; its own dimension 0 counts.
  const ls::Tensor wide = nn::kl_div(y.log(), x.exp(), {.reduction = KLDivReduction::kBatchMean});
  check_close(wide, nn::kl_div(y.log().expand({3, 4}), x.exp(), {.reduction = KLDivReduction::kSum}) / 4.0, "of y");
}

TEST_CASE("a NaN in an input of smooth_l1_loss or huber_loss has a gradient of NaN, and an infinity has a finite one") {
  const ls::Tensor y = ls::zeros({5}, {.dtype = ls::kFloat64});
  for (const bool smooth : {true, false}) {
    const ls::Tensor x = ls::tensor({kNan, kInf, -kInf, 0.25, -3.0}, {.dtype = ls::kFloat64}).requires_grad_();
    const ls::Tensor loss = smooth ? nn::smooth_l1_loss(x, y, {.reduction = Reduction::kSum, .beta = 0.5})
                                   : nn::huber_loss(x, y, {.reduction = Reduction::kSum, .delta = 0.5});
    loss.backward();
    const double scale = smooth ? 2 : 1;
    check_close(x.grad(), ls::tensor({kNan, 0.5, -0.5, 0.25, -0.5}, {.dtype = ls::kFloat64}) * scale, "gradient");
  }
}
