// state_dict and load_state_dict of optimizers and schedules.
#include "tests/optim/support.h"

using ls::optim::Adam;
using ls::optim::SGD;

namespace {

struct Two {
  ls::nn::Parameter a = parameter({1, 2}), b = parameter({3});
  std::vector<ls::nn::Parameter> all() const { return {a, b}; }
  void step(ls::optim::Optimizer& optimizer, double g) const {
    set_grad(a, {g, -g});
    set_grad(b, {2 * g});
    optimizer.step();
  }
};

// Returns `dict` with one entry replaced, or removed if `tensor` is undefined.
ls::StateDict with(const ls::StateDict& dict, const std::string& key, const ls::Tensor& tensor) {
  ls::StateDict result;
  for (const auto& [name, value] : dict) {
    if (name != key) result.insert(name, value);
  }
  if (tensor.defined()) result.insert(key, tensor);
  return result;
}

}  // namespace

TEST_CASE("the state has PyTorch's names, flattened") {
  Two two;
  SGD sgd({{.params = {two.a}, .lr = 0.5}, {.params = {two.b}}}, {.lr = 0.25, .momentum = 0.5});
  two.step(sgd, 1);
  const ls::StateDict state = sgd.state_dict();
  CHECK(values(state.at("state.0.momentum_buffer")) == std::vector<double>{1, -1});
  CHECK(state.at("param_groups.0.lr").item<double>() == 0.5);
  CHECK(state.at("param_groups.1.lr").item<double>() == 0.25);
  CHECK(state.at("param_groups.1.nesterov").item<bool>() == false);
  CHECK(values(state.at("param_groups.1.params")) == std::vector<double>{1});

  Adam adam(two.all());
  two.step(adam, 1);
  two.step(adam, 1);
  CHECK(adam.state_dict().at("state.1.step").item<std::int64_t>() == 2);
  CHECK(adam.state_dict().contains("state.1.exp_avg_sq"));
}

TEST_CASE("later steps do not change the result of state_dict") {
  Two two;
  SGD sgd(two.all(), {.lr = 0.25, .momentum = 0.5});
  two.step(sgd, 1);
  const ls::StateDict state = sgd.state_dict();
  two.step(sgd, 5);
  CHECK(values(state.at("state.0.momentum_buffer")) == std::vector<double>{1, -1});
}

TEST_CASE("an optimizer that loads another's options and state continues with the same bits") {
  Two one, other;
  Adam first(one.all(), {.lr = 0.1, .beta1 = 0.8});
  one.step(first, 1);
  other.a->detach().copy_(one.a->detach());
  other.b->detach().copy_(one.b->detach());
  Adam second(other.all(), {.lr = 7});
  second.load_state_dict(first.state_dict());
  CHECK(same_bits(first.state_dict(), second.state_dict()));
  one.step(first, -0.3);
  other.step(second, -0.3);
  CHECK(values(one.a) == values(other.a));
  CHECK(values(one.b) == values(other.b));
}

TEST_CASE("the betas of Adam are saved as one list, as PyTorch saves them") {
  Two two;
  const Adam adam(std::vector<ls::optim::AdamGroup>{{.params = {two.a}}, {.params = {two.b}, .beta2 = 0.5}},
                  {.beta1 = 0.75});
  const ls::StateDict state = adam.state_dict();
  CHECK(values(state.at("param_groups.0.betas")) == std::vector<double>{0.75, 0.999});
  CHECK(values(state.at("param_groups.1.betas")) == std::vector<double>{0.75, 0.5});
  CHECK(state.at("param_groups.0.betas").dtype() == ls::kFloat64);
  CHECK_FALSE(state.contains("param_groups.0.beta1"));
}

TEST_CASE("a state that does not fit is refused with its key, and nothing is changed") {
  Two two;
  Adam adam(two.all(), {.lr = 0.1});
  two.step(adam, 1);
  const ls::StateDict before = adam.state_dict();
  Adam source(two.all(), {.lr = 0.2});
  two.step(source, 2);
  const ls::StateDict good = source.state_dict();
  const auto refusal = [&](const std::string& key, const ls::Tensor& tensor) {
    const std::string message = error_of([&] { adam.load_state_dict(with(good, key, tensor)); });
    CHECK(same_bits(adam.state_dict(), before));
    CHECK(contains(message, key));
    return message;
  };
  CHECK(contains(refusal("state.1.exp_avg", {}), "missing"));
  CHECK(contains(refusal("state.1.step", {}), "missing"));
  CHECK(contains(refusal("param_groups.0.betas", {}), "missing"));
  CHECK(contains(refusal("state.0.exp_avg", ls::zeros({3})), "(3) f32"));
  CHECK(contains(refusal("state.0.exp_avg", ls::zeros({2}, {.dtype = ls::kInt64})), "(2) i64"));
  CHECK(contains(refusal("state.0.step", ls::tensor(std::int64_t{-1})), "-1"));
  CHECK(contains(refusal("state.0.step", ls::zeros({2}, {.dtype = ls::kInt64})), "(2) i64"));
  CHECK(contains(refusal("state.2.exp_avg", ls::zeros({1})), "is unexpected"));
  CHECK(contains(refusal("param_groups.1.lr", ls::zeros({})), "is unexpected"));
  CHECK(contains(refusal("param_groups.0.params", ls::tensor({0, 1, 2})), "3 parameters"));
  const std::string message = error_of(
      [&] { adam.load_state_dict(with(good, "param_groups.0.lr", ls::tensor(-1.0, {.dtype = ls::kFloat64}))); });
  CHECK(contains(message, "lr is -1"));
  CHECK(same_bits(adam.state_dict(), before));
}

TEST_CASE("the state of another kind of optimizer is refused") {
  Two two;
  SGD sgd(two.all(), {.momentum = 0.9});
  Adam adam(two.all());
  CHECK(contains(error_of([&] { sgd.load_state_dict(adam.state_dict()); }), "param_groups.0.momentum"));
}

TEST_CASE("loading the state of an optimizer that never stepped resets the momentum") {
  Two two;
  SGD sgd(two.all(), {.momentum = 0.9}), fresh(two.all(), {.momentum = 0.9});
  two.step(sgd, 1);
  sgd.load_state_dict(fresh.state_dict());
  CHECK(!sgd.state_dict().contains("state.0.momentum_buffer"));
}

TEST_CASE("a schedule continues from a loaded state") {
  Two two;
  SGD sgd(two.all(), {.lr = 1}), other(two.all(), {.lr = 5});
  ls::optim::CosineAnnealingLR a(sgd, {.t_max = 10}), b(other, {.t_max = 10});
  for (int i = 0; i < 4; ++i) a.step();
  b.load_state_dict(a.state_dict());
  CHECK(b.steps() == 4);
  CHECK(other.lr() == sgd.lr());
  a.step();
  b.step();
  CHECK(other.lr() == sgd.lr());
}

TEST_CASE("a schedule refuses a state that does not fit, and keeps its own") {
  Two two;
  SGD sgd(two.all(), {.lr = 1});
  ls::optim::StepLR schedule(sgd, {.step_size = 2});
  const ls::StateDict good = schedule.state_dict();
  const auto refusal = [&](const std::string& key, const ls::Tensor& tensor) {
    return error_of([&] { schedule.load_state_dict(with(good, key, tensor)); });
  };
  CHECK(contains(refusal("last_epoch", {}), "\"last_epoch\" is missing"));
  CHECK(contains(refusal("last_epoch", ls::tensor(std::int64_t{-3})), "-3"));
  CHECK(contains(refusal("base_lrs", ls::zeros({2}, {.dtype = ls::kFloat64})), "2 groups"));
  CHECK(contains(refusal("base_lrs", ls::full({1}, -1.0, {.dtype = ls::kFloat64})), "-1"));
  CHECK(contains(refusal("gamma", ls::zeros({1})), "is unexpected"));
  CHECK(schedule.lr() == 1);
  CHECK(schedule.steps() == 0);
}

TEST_CASE("a step to an invalid rate is refused, and changes no group's rate") {
  Two two;
  SGD sgd({{.params = {two.a}, .lr = 0.5}, {.params = {two.b}, .lr = 1e200}});
  ls::optim::StepLR schedule(sgd, {.step_size = 1, .gamma = 1e60});
  schedule.step();
  CHECK(contains(error_of([&] { schedule.step(); }),
                 "Scheduler::step: the rate of group 1 at step 2 is inf, expected a finite number"));
  CHECK(schedule.steps() == 1);
  CHECK(sgd.lr(0) == 0.5 * 1e60);
  CHECK(sgd.lr(1) == 1e200 * 1e60);
}

TEST_CASE("a flag is a bool, and messages truncate a name from a file") {
  Two two;
  SGD sgd(two.all(), {.lr = 0.1});
  const ls::StateDict good = sgd.state_dict();
  for (const double value : {7.0, -1.0, kNan}) {
    const ls::Tensor flag = ls::tensor(value, {.dtype = ls::kFloat64});
    CHECK(contains(error_of([&] { sgd.load_state_dict(with(good, "param_groups.0.maximize", flag)); }),
                   "\"param_groups.0.maximize\" is "));
  }
  CHECK(contains(error_of([&] { sgd.load_state_dict(with(good, std::string(100000, 'k'), ls::zeros({1}))); }),
                 "is unexpected"));
}
