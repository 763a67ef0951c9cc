// Ten steps of every optimizer, and every schedule, compared with PyTorch (tests/golden/golden_optim.py).
#include "tests/optim/support.h"

#include <map>

namespace {

const ls::StateDict& golden() {
  static const ls::StateDict dict = ls::load(LOCKSTEP_GOLDEN_DIR "/optim.safetensors");
  return dict;
}

Make sgd(const ls::optim::SGDOptions& options) { return make<ls::optim::SGD>(options); }
Make adam(const ls::optim::AdamOptions& options) { return make<ls::optim::Adam>(options); }
Make adamw(const ls::optim::AdamWOptions& options) { return make<ls::optim::AdamW>(options); }

const std::map<std::string, Make>& cases() {
  static const std::map<std::string, Make> all = {
      {"sgd", sgd({.lr = 0.1})},
      {"sgd_momentum", sgd({.lr = 0.1, .momentum = 0.9})},
      {"sgd_momentum_skip", sgd({.lr = 0.1, .momentum = 0.9})},
      {"sgd_dampening", sgd({.lr = 0.1, .momentum = 0.9, .dampening = 0.3})},
      {"sgd_nesterov", sgd({.lr = 0.1, .momentum = 0.9, .nesterov = true})},
      {"sgd_weight_decay", sgd({.lr = 0.1, .weight_decay = 0.05})},
      {"sgd_maximize", sgd({.lr = 0.1, .maximize = true})},
      {"sgd_nesterov_decay", sgd({.lr = 0.05, .momentum = 0.8, .weight_decay = 0.1, .nesterov = true})},
      {"sgd_all", sgd({.lr = 0.05, .momentum = 0.8, .dampening = 0.2, .weight_decay = 0.1, .maximize = true})},
      {"adam", adam({.lr = 0.01})},
      {"adam_skip", adam({.lr = 0.01})},
      {"adam_weight_decay", adam({.lr = 0.01, .weight_decay = 0.1})},
      {"adam_betas_eps", adam({.lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3})},
      {"adamw", adamw({.lr = 0.01})},
      {"adamw_skip", adamw({.lr = 0.01})},
      {"adamw_no_decay", adamw({.lr = 0.01, .weight_decay = 0})},
      {"adamw_betas_eps", adamw({.lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.3})},
  };
  return all;
}

// Steps a parameter as golden_optim.py does, and compares it after each step.
void check_case(const std::string& name, const std::string& tag, bool strided) {
  CAPTURE(name);
  CAPTURE(tag);
  CAPTURE(strided);
  ls::Tensor start = golden().at("optim." + tag + "/start").clone();
  if (strided) start = start.t().contiguous().t();
  const ls::Tensor gradients = golden().at("optim." + tag + "/gradients");
  const ls::Tensor expected = golden().at(name + "." + tag + "/after");
  const double rtol = tag == "f64" ? 1e-12 : 1e-5, atol = tag == "f64" ? 1e-14 : 1e-7;
  const bool skips = name.ends_with("_skip");

  const ls::nn::Parameter p(start);
  const auto optimizer = cases().at(name)({p});
  for (std::int64_t step = 0; step < gradients.size(0); ++step) {
    const ls::Tensor grad = gradients[step].clone();
    if (skips && (step == 3 || step == 4))
      p->set_grad({});
    else
      p->set_grad(strided ? grad.t().contiguous().t() : grad);
    optimizer->step();
    CAPTURE(step);
    CHECK(ls::allclose(p->detach(), expected[step], rtol, atol));
  }
}

}  // namespace

TEST_CASE("every optimizer's ten steps equal PyTorch's, in f32 and f64") {
  for (const auto& [name, make] : cases()) {
    for (const char* tag : {"f32", "f64"}) check_case(name, tag, false);
  }
}

TEST_CASE("a parameter and a gradient that are not contiguous give the same steps") {
  for (const auto& [name, make] : cases()) check_case(name, "f64", true);
}

TEST_CASE("every golden optimizer run has its case here") {
  for (const auto& entry : golden()) {
    const std::string& key = entry.first;
    if (!key.ends_with(".f64/after")) continue;
    CAPTURE(key);
    CHECK(cases().contains(key.substr(0, key.find('.'))));
  }
}

TEST_CASE("schedules have PyTorch's rates for 25 steps") {
  const auto check = [](const std::string& name, const auto& make_scheduler) {
    CAPTURE(name);
    ls::optim::SGD optimizer({parameter({0})}, {.lr = 0.1});
    auto scheduler = make_scheduler(optimizer);
    const std::vector<double> expected = golden().at(name + "/lr").to_vector<double>();
    for (std::size_t t = 0; t < expected.size(); ++t) {
      CAPTURE(t);
      CHECK(optimizer.lr() == doctest::Approx(expected[t]).epsilon(1e-10));
      CHECK(scheduler->lr() == optimizer.lr());
      scheduler->step();
    }
  };
  using ls::optim::Optimizer;
  check("step_lr", [](Optimizer& o) {
    return std::make_unique<ls::optim::StepLR>(o, ls::optim::StepLROptions{.step_size = 7, .gamma = 0.5});
  });
  check("cosine", [](Optimizer& o) {
    return std::make_unique<ls::optim::CosineAnnealingLR>(
        o, ls::optim::CosineAnnealingLROptions{.t_max = 25, .eta_min = 0.001});
  });
  check("cosine_past_t_max", [](Optimizer& o) {
    return std::make_unique<ls::optim::CosineAnnealingLR>(o, ls::optim::CosineAnnealingLROptions{.t_max = 10});
  });
  check("linear_warmup", [](Optimizer& o) {
    return std::make_unique<ls::optim::LinearWarmup>(o, ls::optim::LinearWarmupOptions{.steps = 10});
  });
}
