// Schedules by milestones, functions, restarts, cycles and metrics: compared with PyTorch, resumed, and refused.
#include <memory>

#include "tests/optim/support.h"

namespace optim = ls::optim;
using optim::SGD;

namespace {

// Compares 26 rates, and the momentum if the golden values have one.
template <class Scheduler, class Options>
void check(const std::string& name, Options options) {
  INFO(name);
  const ls::StateDict dict = golden("breadth");
  SGD optimizer({parameter({0})}, {.lr = 0.1, .momentum = 0.9});
  Scheduler scheduler(optimizer, std::move(options));
  const std::vector<double> expected = dict.at(name + "/lr").to_vector<double>();
  REQUIRE(expected.size() == 26);
  const bool one_cycle = name.starts_with("one_cycle");  // PyTorch extrapolates the step after its last
  for (std::size_t t = 0; t < expected.size() - one_cycle; ++t) {
    INFO("step ", t);
    if (t > 0) scheduler.step();
    CHECK(optimizer.lr() == doctest::Approx(expected[t]).epsilon(1e-10).scale(1e-9));
    const double momentum = optimizer.state_dict().at("param_groups.0.momentum").item<double>();
    const std::string key = name + "/momentum";
    CHECK(momentum ==
          doctest::Approx(dict.contains(key) ? dict.at(key)[static_cast<std::int64_t>(t)].item<double>() : 0.9));
  }
}

void check_plateau(const std::string& name, const optim::ReduceLROnPlateauOptions& options) {
  INFO(name);
  const ls::StateDict dict = golden("breadth");
  const std::vector<double> metrics = dict.at("plateau/metrics").to_vector<double>();
  const std::vector<double> expected = dict.at(name + "/lr").to_vector<double>();
  CHECK(expected.back() < 0.05);
  // The second scheduler takes over in the middle.
  SGD optimizer({parameter({0})}, {.lr = 0.1}), other({parameter({0})}, {.lr = 7});
  optim::ReduceLROnPlateau scheduler(optimizer, options), resumed(other, options);
  for (std::size_t t = 0; t < metrics.size(); ++t) {
    scheduler.step(metrics[t]);
    CHECK(optimizer.lr() == doctest::Approx(expected[t]));
    if (t == 8) resumed.load_state_dict(scheduler.state_dict());
    if (t > 8) resumed.step(metrics[t]);
    if (t >= 8) CHECK(other.lr() == optimizer.lr());
  }
}

}  // namespace

TEST_CASE("schedules have PyTorch's rates") {
  check<optim::MultiStepLR>("multi_step", optim::MultiStepLROptions{.milestones = {3, 8, 8, 20}, .gamma = 0.5});
  check<optim::ExponentialLR>("exponential", optim::ExponentialLROptions{.gamma = 0.9});
  check<optim::LambdaLR>("exponential", [](std::int64_t t) { return std::pow(0.9, static_cast<double>(t)); });
  check<optim::PolynomialLR>("polynomial", optim::PolynomialLROptions{.total_iters = 20, .power = 2});
  using Restarts = optim::CosineAnnealingWarmRestartsOptions;
  check<optim::CosineAnnealingWarmRestarts>("warm_restarts", Restarts{.t_0 = 4, .t_mult = 2, .eta_min = 0.001});
  check<optim::CosineAnnealingWarmRestarts>("warm_restarts_equal", Restarts{.t_0 = 7});
}

TEST_CASE("OneCycleLR has PyTorch's rates and momentum") {
  check<optim::OneCycleLR>("one_cycle", optim::OneCycleLROptions{.max_lr = 0.3, .total_steps = 25});
  check<optim::OneCycleLR>("one_cycle_three",
                           optim::OneCycleLROptions{.max_lr = 0.3,
                                                    .total_steps = 25,
                                                    .pct_start = 0.4,
                                                    .anneal_strategy = optim::AnnealStrategy::kLinear,
                                                    .base_momentum = 0.5,
                                                    .max_momentum = 0.75,
                                                    .div_factor = 10,
                                                    .final_div_factor = 100,
                                                    .three_phase = true});
}

TEST_CASE("OneCycleLR cycles the first beta of Adam, continues from a state, and ends") {
  optim::Adam adam({parameter({0})}), other({parameter({0})});
  const optim::OneCycleLROptions options = {.max_lr = 1, .total_steps = 4};
  optim::OneCycleLR a(adam, options), b(other, options);
  const auto betas = [](const optim::Adam& optimizer) {
    return optimizer.state_dict().at("param_groups.0.betas").to_vector<double>();
  };
  CHECK(betas(adam) == std::vector<double>{0.95, 0.999});
  a.step();
  b.load_state_dict(a.state_dict());
  CHECK(betas(other) == betas(adam));
  CHECK(betas(adam)[0] < 0.9);
  CHECK(other.lr() == adam.lr());
  a.step();
  a.step();
  const double last = adam.lr();
  a.step();
  CHECK(adam.lr() == last);
  CHECK(contains(error_of([&] { a.step(); }), "OneCycleLR: step 5 of a cycle of 4 steps"));
  CHECK(a.steps() == 4);
  optim::Adagrad adagrad({parameter({0})});
  CHECK(contains(error_of([&] { optim::OneCycleLR(adagrad, options); }), "neither momentum nor betas"));
  const optim::OneCycleLR rate_alone(adagrad, {.max_lr = 1, .total_steps = 4, .cycle_momentum = false});
  CHECK(adagrad.lr() == doctest::Approx(0.04));
}

TEST_CASE("ReduceLROnPlateau has PyTorch's rates, also when it is resumed") {
  check_plateau("plateau", {.factor = 0.5, .patience = 2});
  check_plateau("plateau_max", {.mode = optim::PlateauMode::kMax,
                                .factor = 0.3,
                                .patience = 1,
                                .threshold = 0.1,
                                .threshold_mode = optim::ThresholdMode::kAbs,
                                .cooldown = 2,
                                .min_lr = 0.02});
}

TEST_CASE("options out of range are refused") {
  SGD optimizer({parameter({0})}, {.lr = 0.1});
  CHECK(contains(error_of([&] { optim::MultiStepLR(optimizer, {}); }), "0 milestones"));
  CHECK(contains(error_of([&] { optim::MultiStepLR(optimizer, {.milestones = {3, 2}}); }), "increasing order"));
  CHECK(contains(error_of([&] { optim::ExponentialLR(optimizer, {}); }), "ExponentialLR: gamma is -1"));
  CHECK(contains(error_of([&] { optim::PolynomialLR(optimizer, {.total_iters = 0}); }), "total_iters is 0"));
  CHECK(contains(error_of([&] { optim::LambdaLR(optimizer, {}); }), "the function is empty"));
  CHECK(contains(error_of([&] { optim::CosineAnnealingWarmRestarts(optimizer, {}); }), "t_0 is 0"));
  CHECK(contains(error_of([&] { optim::OneCycleLR(optimizer, {.max_lr = 1}); }), "total_steps is 0"));
  CHECK(contains(error_of([&] { optim::OneCycleLR(optimizer, {.total_steps = 9}); }), "max_lr is 0"));
  for (const bool three_phase : {false, true})
    CHECK(contains(error_of([&] {
                     optim::OneCycleLR(optimizer,
                                       {.max_lr = 1, .total_steps = 4, .pct_start = 0.25, .three_phase = three_phase});
                   }),
                   "OneCycleLR: pct_start is 0.25 and total_steps is 4, whose product must not be 1"));
  CHECK(optimizer.lr() == 0.1);
  CHECK(contains(error_of([&] { optim::ReduceLROnPlateau(optimizer, {.factor = 1}); }), "factor is 1"));
  optim::ReduceLROnPlateau plateau(optimizer);
  CHECK(contains(error_of([&] { plateau.step(); }), "needs the metric"));
  CHECK(optimizer.lr() == 0.1);
}
