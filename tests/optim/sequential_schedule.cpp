// SequentialLR: one schedule after another, compared with PyTorch, resumed, and refused.
#include "tests/optim/support.h"

using ls::optim::CosineAnnealingLR;
using ls::optim::LinearWarmup;
using ls::optim::SequentialLR;
using ls::optim::SGD;
using ls::optim::StepLR;

namespace {

// The schedule of the golden values.
struct Schedule {
  SGD optimizer{{parameter({0})}, {.lr = 0.1}};
  LinearWarmup warmup{optimizer, {.steps = 4}};
  CosineAnnealingLR cosine{optimizer, {.t_max = 12, .eta_min = 0.01}};
  StepLR decay{optimizer, {.step_size = 3, .gamma = 0.5}};
  SequentialLR all{optimizer, {&warmup, &cosine, &decay}, {4, 16}};
};

}  // namespace

TEST_CASE("warmup, a cosine, then steps have PyTorch's rates") {
  Schedule schedule;
  const std::vector<double> expected = golden("gpt").at("sequential/lr").to_vector<double>();
  REQUIRE(expected.size() == 26);
  for (std::size_t t = 0; t < expected.size(); ++t) {
    CAPTURE(t);
    CHECK(schedule.optimizer.lr() == doctest::Approx(expected[t]).epsilon(1e-10));
    CHECK(schedule.all.lr() == schedule.optimizer.lr());
    schedule.all.step();
  }
}

TEST_CASE("groups keep the ratio of their rates") {
  SGD optimizer({{.params = {parameter({0})}, .lr = 1.0}, {.params = {parameter({0})}, .lr = 0.25}});
  const LinearWarmup warmup(optimizer, {.steps = 2});
  const CosineAnnealingLR cosine(optimizer, {.t_max = 10});
  SequentialLR schedule(optimizer, {&warmup, &cosine}, {2});
  for (int t = 0; t < 12; ++t, schedule.step())
    CHECK(optimizer.lr(1) == doctest::Approx(optimizer.lr(0) / 4).epsilon(1e-14));
}

TEST_CASE("the base rate is that of before the first scheduler, which has changed it since") {
  SGD optimizer({parameter({0})}, {.lr = 0.5});
  const LinearWarmup warmup(optimizer, {.steps = 5});
  CHECK(optimizer.lr() == 0.1);
  const CosineAnnealingLR cosine(optimizer, {.t_max = 10});
  CHECK(optimizer.lr() == 0.5);
  CHECK(SequentialLR(optimizer, {&warmup, &cosine}, {5}).lr() == 0.1);
}

TEST_CASE("a scheduler that is made after set_lr starts from that rate, in every group that was set") {
  SGD optimizer({{.params = {parameter({0})}}, {.params = {parameter({0})}, .lr = 0.25}}, {.lr = 0.5});
  StepLR first(optimizer, {.step_size = 1, .gamma = 0.5});
  first.step();
  optimizer.set_lr(0, 0.1);
  ls::optim::ExponentialLR second(optimizer, {.gamma = 0.9});
  CHECK(optimizer.lr(0) == 0.1);
  CHECK(optimizer.lr(1) == 0.25);  // was not set: the base rate
  second.step();
  CHECK(optimizer.lr(0) == doctest::Approx(0.09).epsilon(1e-14));
  CHECK(second.state_dict().at("base_lrs").to_vector<double>() == std::vector<double>{0.1, 0.25});
  first.step();  // keeps its own base rate
  CHECK(optimizer.lr(0) == 0.125);

  // The rate that was set is saved, and found again by a scheduler that is made after a load.
  SGD loaded({{.params = {parameter({0})}}, {.params = {parameter({0})}}}, {.lr = 7});
  loaded.load_state_dict(optimizer.state_dict());
  CHECK(loaded.lr() == 0.125);
  CHECK(StepLR(loaded, {.step_size = 9}).lr() == 0.1);
  loaded.set_lr(3);
  CHECK(StepLR(loaded, {.step_size = 9}).lr() == 3);

  // ReduceLROnPlateau sets rates as other schedulers do: they are no new base rates.
  SGD plain({parameter({0})}, {.lr = 0.5});
  ls::optim::ReduceLROnPlateau plateau(plain, {.factor = 0.5, .patience = 0});
  for (int i = 0; i < 3; ++i) plateau.step(1.0);
  CHECK(plain.lr() == 0.125);
  CHECK(StepLR(plain, {.step_size = 9}).lr() == 0.5);
}

TEST_CASE("a schedule that was saved within the cosine continues there") {
  Schedule a, b;
  for (int t = 0; t < 9; ++t) a.all.step();
  b.all.load_state_dict(a.all.state_dict());
  for (int t = 0; t < 12; ++t) {
    CHECK(b.optimizer.lr() == a.optimizer.lr());
    a.all.step(), b.all.step();
  }
  CHECK(b.all.steps() == 21);
}

TEST_CASE("schedulers and milestones that do not fit are refused") {
  Schedule s;
  SGD other({parameter({0})});
  const LinearWarmup foreign(other, {.steps = 2});
  CHECK(error_of([&] {
          SequentialLR(s.optimizer, {&s.warmup, &s.cosine}, {});
        }) == "SequentialLR: 2 schedulers and 0 milestones, expected one milestone fewer than schedulers");
  CHECK(contains(error_of([&] { SequentialLR(s.optimizer, {}, {}); }), "0 schedulers and 0 milestones"));
  const ls::optim::ReduceLROnPlateau plateau(s.optimizer);
  CHECK(contains(error_of([&] {
                   SequentialLR(s.optimizer, {&s.warmup, &plateau}, {3});
                 }),
                 "ReduceLROnPlateau has no schedule of its own"));
  CHECK(contains(error_of([&] {
                   SequentialLR(s.optimizer, {&s.warmup, &foreign}, {3});
                 }),
                 "scheduler 1 is null or of another optimizer"));
  CHECK(contains(error_of([&] { SequentialLR(s.optimizer, {nullptr}, {}); }), "scheduler 0 is null"));
  CHECK(contains(error_of([&] { SequentialLR(s.optimizer, {&s.warmup, &s.cosine}, {0}); }), "milestone 0 is 0"));
  CHECK(contains(error_of([&] {
                   SequentialLR(s.optimizer, {&s.warmup, &s.cosine, &s.decay}, {4, 4});
                 }),
                 "milestone 1 is 4, expected increasing numbers of at least 1"));
}
