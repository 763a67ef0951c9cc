// Options, groups, and refused arguments.
#include <limits>

#include "tests/optim/support.h"

using ls::optim::Adam;
using ls::optim::AdamW;
using ls::optim::SGD;

TEST_CASE("a group's own options take precedence over the optimizer's") {
  const auto a = parameter({0}), b = parameter({0});
  SGD optimizer({{.params = {a}, .lr = 0.5}, {.params = {b}}}, {.lr = 0.25});
  set_grad(a, {1});
  set_grad(b, {1});
  optimizer.step();
  CHECK(values(a)[0] == -0.5);
  CHECK(values(b)[0] == -0.25);
  CHECK(optimizer.group_count() == 2);
  CHECK(optimizer.lr() == 0.5);
  CHECK(optimizer.lr(1) == 0.25);
}

TEST_CASE("set_lr changes one group or all of them") {
  SGD optimizer({{.params = {parameter({0})}}, {.params = {parameter({0})}}}, {.lr = 0.25});
  optimizer.set_lr(1, 0.125);
  CHECK(optimizer.lr(0) == 0.25);
  CHECK(optimizer.lr(1) == 0.125);
  optimizer.set_lr(2);
  CHECK(optimizer.lr(0) == 2);
  CHECK(optimizer.lr(1) == 2);
  CHECK(contains(error_of([&] { optimizer.lr(2); }), "group 2 is outside [0, 2)"));
}

TEST_CASE("AdamW takes groups, and its own default of weight_decay") {
  const auto a = parameter({1}), b = parameter({1});
  AdamW optimizer({{.params = {a}, .weight_decay = 0.5}, {.params = {b}}}, {.lr = 0.5});
  set_grad(a, {0});
  set_grad(b, {0});
  optimizer.step();
  CHECK(values(a)[0] == doctest::Approx(1 - 0.5 * 0.5));
  CHECK(values(b)[0] == doctest::Approx(1 - 0.5 * 0.01));
}

TEST_CASE("options out of range are refused with their value") {
  const std::vector<ls::nn::Parameter> p = {parameter({0})};
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  CHECK(contains(error_of([&] { SGD(p, {.lr = -0.1}); }), "SGD: lr is -0.1"));
  CHECK(contains(error_of([&] { SGD(p, {.lr = nan}); }), "SGD: lr is nan"));
  CHECK(contains(error_of([&] { SGD(p, {.lr = inf}); }), "SGD: lr is inf"));
  CHECK(contains(error_of([&] { SGD(p, {.momentum = -1}); }), "SGD: momentum is -1"));
  CHECK(contains(error_of([&] { SGD(p, {.weight_decay = -2}); }), "SGD: weight_decay is -2"));
  CHECK(contains(error_of([&] { SGD(p, {.momentum = 0.9, .dampening = nan}); }), "SGD: dampening is nan"));
  CHECK(contains(error_of([&] { SGD(p, {.nesterov = true}); }), "momentum is 0"));
  CHECK(contains(error_of([&] { SGD(p, {.momentum = 0.9, .dampening = 0.5, .nesterov = true}); }), "dampening is 0.5"));
  CHECK(contains(error_of([&] { Adam(p, {.lr = -1}); }), "Adam: lr is -1"));
  CHECK(contains(error_of([&] { Adam(p, {.beta1 = 1}); }), "Adam: beta1 is 1, expected a number in [0, 1)"));
  CHECK(contains(error_of([&] { Adam(p, {.beta2 = -0.5}); }), "Adam: beta2 is -0.5"));
  CHECK(contains(error_of([&] { AdamW(p, {.eps = -1e-8}); }), "AdamW: eps is -1e-08"));
  CHECK(contains(error_of([&] { AdamW(p, {.weight_decay = -1}); }), "AdamW: weight_decay is -1"));
  CHECK(contains(error_of([&] { SGD({{.params = p, .lr = -3}}, {.lr = 1}); }), "SGD: lr is -3"));
  SGD optimizer(p);
  CHECK(contains(error_of([&] { optimizer.set_lr(-4); }), "lr is -4"));
  CHECK(optimizer.lr() == 1e-3);
}

TEST_CASE("a parameter given twice, in one group or in two, is refused") {
  const auto a = parameter({1, 2}), b = parameter({0});
  CHECK(contains(error_of([&] { SGD({a, b, a}); }), "parameter 2 of group 0, (2) f64 cpu, was given before"));
  CHECK(contains(error_of([&] { Adam({{.params = {a}}, {.params = {b, a}}}); }), "parameter 1 of group 1"));
}

TEST_CASE("an optimizer without parameters is refused") {
  CHECK(contains(error_of([] { SGD(std::vector<ls::nn::Parameter>{}); }), "SGD: no parameters"));
}

TEST_CASE("a schedule keeps the ratio of the groups' rates") {
  SGD optimizer({{.params = {parameter({0})}, .lr = 1.0}, {.params = {parameter({0})}}}, {.lr = 0.5});
  ls::optim::StepLR schedule(optimizer, {.step_size = 1, .gamma = 0.5});
  schedule.step();
  CHECK(schedule.lr(0) == 0.5);
  CHECK(schedule.lr(1) == 0.25);
}

TEST_CASE("a schedule without its length is refused with the given options") {
  SGD optimizer({parameter({0})});
  CHECK(contains(error_of([&] { ls::optim::StepLR(optimizer, {}); }), "StepLR: step_size is 0"));
  CHECK(contains(error_of([&] { ls::optim::StepLR(optimizer, {.step_size = 1, .gamma = -1}); }), "gamma is -1"));
  CHECK(contains(error_of([&] { ls::optim::CosineAnnealingLR(optimizer, {.t_max = -5}); }), "t_max is -5"));
  CHECK(contains(error_of([&] { ls::optim::LinearWarmup(optimizer, {}); }), "LinearWarmup: steps is 0"));
}
