// GradScaler: its scale, the steps that it leaves out, its state and its errors. On ranks: parallel.unusual_gradients_threads.
#include "tests/optim/support.h"

#include <utility>

namespace {

using ls::optim::GradScaler;

struct Subject {
  ls::nn::Parameter w = ls::nn::Parameter(ls::tensor({1.0F, -2.0F}));
  ls::optim::SGD sgd{{w}, {.lr = 0.5}};

  // Steps with the gradient of `factor` w w.
  bool step(GradScaler& scaler, double factor = 1) {
    sgd.zero_grad();
    scaler.scale(ls::sum(*w * *w) * factor).backward();
    return scaler.step(sgd);
  }
};

}  // namespace

TEST_CASE("GradScaler steps as without it, where gradients are finite") {
  Subject scaled, plain;
  GradScaler scaler({.init_scale = 1024}), off({.enabled = false});
  for (int step = 0; step < 3; ++step) {
    CHECK(scaled.step(scaler, 0.1));
    scaler.update();
    CHECK(plain.step(off, 0.1));
    off.update();
  }
  CHECK(same_bits(*scaled.w, *plain.w));
  CHECK((off.get_scale() == 1 && !off.is_enabled() && scaler.is_enabled()));
}

TEST_CASE("GradScaler leaves out steps with gradients that are not finite, and sets the scale as PyTorch") {
  Subject subject;
  GradScaler scaler({.init_scale = 8, .growth_factor = 4, .backoff_factor = 0.25, .growth_interval = 2});
  const ls::Tensor before = subject.w->clone();
  const std::pair<double, double> steps[] = {
      // factor of the loss, scale after it
      {kInf, 2}, {0, 2}, {0, 8}, {kNan, 2}, {0, 2}, {kInf, 0.5}, {0, 0.5}, {0, 2}};
  for (const auto& [factor, scale] : steps) {
    CHECK(subject.step(scaler, factor) == (factor == 0));
    scaler.update();
    CHECK(scaler.get_scale() == scale);
  }
  CHECK(same_bits(*subject.w, before));
  GradScaler largest({.init_scale = 3e38, .growth_interval = 1});
  CHECK_FALSE(subject.step(largest));  // the scaled loss is infinite
  GradScaler grown({.init_scale = 1e30, .growth_factor = 1e20, .growth_interval = 1});
  CHECK(subject.step(grown, 0));
  grown.update();
  CHECK(grown.get_scale() == 1e30);  // as its product is more than an f32
}

TEST_CASE("GradScaler divides gradients once, for clipping before the step; several optimizers share a scale") {
  Subject one, two;
  GradScaler scaler({.init_scale = 16});
  scaler.scale(ls::sum(*one.w * 3.0)).backward();
  scaler.scale(ls::sum(*two.w * kInf)).backward();
  scaler.unscale_(one.sgd);
  CHECK(one.w->grad().to_vector<float>() == std::vector<float>{3, 3});
  ls::nn::clip_grad_norm_({one.w}, 1.0);
  CHECK(scaler.step(one.sgd));
  CHECK_FALSE(scaler.step(two.sgd));
  scaler.update();
  CHECK(scaler.get_scale() == 8);
  one.sgd.zero_grad();
  CHECK(scaler.step(one.sgd));  // no gradients: nothing is infinite
}

TEST_CASE("GradScaler scales losses of f16, whose small gradients it keeps") {
  const auto gradient = [](double scale) {
    GradScaler scaler({.init_scale = scale});
    ls::nn::Parameter w(ls::ones({4}));
    ls::optim::SGD sgd({w}, {.lr = 1.0});
    const ls::Tensor tiny = ls::full({4}, 1e-5, {.dtype = ls::kFloat16});
    const ls::Tensor loss = ls::sum(w->to(ls::kFloat16) * tiny);
    CHECK(scaler.scale(loss).dtype() == ls::kFloat32);
    scaler.scale(loss.to(ls::kFloat32) * 1e-4).backward();
    scaler.unscale_(sgd);
    return w->grad().to_vector<float>()[0];
  };
  CHECK(gradient(1) == 0);
  CHECK(gradient(65536) == doctest::Approx(1e-9).epsilon(0.02));
}

TEST_CASE("the state of GradScaler has PyTorch's names, and continues the count of steps") {
  Subject subject;
  GradScaler scaler({.init_scale = 4, .growth_interval = 3}), other;
  CHECK(subject.step(scaler));
  scaler.update();
  const ls::StateDict state = scaler.state_dict();
  std::vector<std::string> names;
  for (const auto& [name, tensor] : state) names.push_back(name);
  CHECK(names ==
        std::vector<std::string>{"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"});
  other.load_state_dict(state);
  for (const double scale : {4.0, 8.0}) {
    CHECK(subject.step(other));
    other.update();
    CHECK(other.get_scale() == scale);
  }
  ls::StateDict wrong;
  for (const auto& [name, tensor] : state)
    wrong.insert(name, name == "scale" ? ls::full({}, -1.0, {.dtype = ls::kFloat64}) : tensor);
  CHECK(error_of([&] { other.load_state_dict(wrong); }) ==
        "load_state_dict: the scale is -1, expected a normal number of f32, above 0");
  CHECK(contains(error_of([&] { other.load_state_dict({}); }), "\"scale\" is missing"));
  CHECK(other.get_scale() == 8);
}

TEST_CASE("errors of GradScaler") {
  CHECK(error_of([] { GradScaler({.init_scale = kNan}); }) ==
        "GradScaler: the scale is nan, expected a normal number of f32, above 0");
  CHECK(contains(error_of([] { GradScaler({.init_scale = 1e-39}); }), "the scale is 1e-39"));
  CHECK(contains(error_of([] { GradScaler({.growth_factor = 0.5}); }), "growth_factor is 0.5, expected a finite"));
  CHECK(contains(error_of([] { GradScaler({.backoff_factor = 2}); }),
                 "backoff_factor is 2, expected a number in (0, 1]"));
  CHECK(error_of([] { GradScaler({.growth_interval = 0}); }) == "GradScaler: growth_interval is 0, expected 1 or more");
  Subject subject;
  GradScaler scaler;
  CHECK(error_of([&] { scaler.update(); }) == "GradScaler: update without a step; call step(optimizer) before");
  CHECK(subject.step(scaler));
  CHECK(error_of([&] { scaler.step(subject.sgd); }) ==
        "GradScaler: step was called for this optimizer before; call update() after each step");
  CHECK(contains(error_of([&] { scaler.unscale_(subject.sgd); }),
                 "unscale_ or step was called for this optimizer before"));

  const ls::nn::Parameter half(ls::ones({2}, {.dtype = ls::kFloat16}));
  ls::optim::SGD of_half({half}, {.lr = 1.0});
  GradScaler other;
  other.scale(ls::sum(*half)).backward();
  CHECK(contains(error_of([&] { other.step(of_half); }), "GradScaler: a gradient is f16"));
  ls::nn::Linear module(2, 1);
  ls::parallel::GradientAccumulation run(module);
  CHECK(contains(error_of([&] { other.step(subject.sgd, run); }), "has a parameter that is not in run.parameters()"));
}

TEST_CASE("GradScaler that is not enabled does nothing") {
  Subject subject;
  GradScaler off({.enabled = false});
  const ls::Tensor loss = ls::sum(*subject.w);
  CHECK(off.scale(loss).ref() == loss.ref());
  for (int step = 0; step < 2; ++step) CHECK(subject.step(off, step));
  off.unscale_(subject.sgd);
  CHECK_NOTHROW(off.update());
  CHECK(off.state_dict().size() == 0);
  CHECK_NOTHROW(off.load_state_dict({}));
}
