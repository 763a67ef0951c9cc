// Optimizer state under the names of a model's parameters: other orders and groups, tied parameters, old files.
#include <algorithm>

#include "tests/optim/support.h"

namespace {

using ls::optim::AdamW;
using Parameters = std::vector<ls::nn::Parameter>;

// The model of golden/checkpoint_by_index.safetensors: a tied parameter, and names with dots.
struct Net : ls::nn::Module {
  ls::nn::Embedding& embed = add<ls::nn::Embedding>("embed", 4, 3);
  ls::nn::Sequential& body =
      add<ls::nn::Sequential>("body", ls::nn::Linear(3, 3), ls::nn::GELU(), ls::nn::Linear(3, 3));
  ls::nn::Parameter& head = add_parameter("head", embed.weight);

  // All parameters but "body.2.bias": the matrices, or the others.
  Parameters some(bool matrices) const {
    Parameters result;
    for (const auto& [name, p] : named_parameters())
      if (name != "body.2.bias" && (p->dim() >= 2) == matrices) result.push_back(p);
    return result;
  }
  Parameters all() const {
    Parameters result = some(false);
    for (const ls::nn::Parameter& p : some(true)) result.push_back(p);
    return result;
  }
  void step(ls::optim::Optimizer& optimizer, int steps) const {
    for (int i = 0; i < steps; ++i) {
      double value = 1;
      for (const ls::nn::Parameter& p : parameters()) p->set_grad(ls::full(p->shape(), value *= 2));
      optimizer.step();
    }
  }
};

// The groups and the schedule of that file.
struct Trainer {
  Net net;
  AdamW optimizer{{{.params = net.some(false), .weight_decay = 0.0}, {.params = net.some(true), .lr = 0.5}},
                  {.lr = 0.25, .weight_decay = 0.125}};
  ls::optim::StepLR schedule{optimizer, {.step_size = 1, .gamma = 0.5}};
  void train(int steps) {
    for (int i = 0; i < steps; ++i) net.step(optimizer, 1), schedule.step();
  }
  ls::CheckpointParts parts() { return {.model = &net, .optimizer = &optimizer, .scheduler = &schedule}; }
};

ls::StateDict part(const ls::StateDict& dict, const std::string& prefix) {
  ls::StateDict result;
  for (const auto& [name, tensor] : dict)
    if (name.starts_with(prefix)) result.insert(name.substr(prefix.size()), tensor);
  return result;
}

}  // namespace

TEST_CASE("a checkpoint with a model has the optimizer's state by name, and without one by index") {
  Trainer a;
  a.train(2);
  ls::save_checkpoint("by_name.safetensors", a.parts());
  const ls::StateDict state = part(ls::load("by_name.safetensors"), "optimizer.");
  CHECK(values(state.at("param_group.body.0.bias")) == std::vector<double>{0, 0});
  CHECK(values(state.at("param_group.head")) == std::vector<double>{1, 1});
  CHECK(state.at("state.body.2.weight.step").item<std::int64_t>() == 2);
  CHECK(state.at("state.head.exp_avg").shape() == ls::Shape{4, 3});
  CHECK(state.at("param_groups.1.initial_lr").item<double>() == 0.5);
  for (const char* absent :
       {"param_group.embed.weight", "param_group.body.2.bias", "state.0.step", "param_groups.0.params"})
    CHECK_FALSE(state.contains(absent));

  CHECK(a.optimizer.state_dict().contains("state.0.step"));
  CHECK(same_bits(a.optimizer.state_dict(), a.optimizer.state_dict(&a.net.body)));  // which lacks "head"
  ls::save_checkpoint("by_index.safetensors", {.optimizer = &a.optimizer});
  CHECK(ls::load("by_index.safetensors").contains("optimizer.param_groups.1.params"));
}

TEST_CASE("state by name loads into an optimizer with another order of groups and parameters, and continues") {
  Trainer a;
  a.train(2);
  ls::save_checkpoint("order.safetensors", a.parts());
  Net net;
  Parameters matrices = net.some(true);
  std::ranges::reverse(matrices);
  AdamW optimizer({{.params = matrices}, {.params = net.some(false)}}, {.lr = 1});
  ls::optim::StepLR schedule(optimizer, {.step_size = 1, .gamma = 0.5});
  ls::load_checkpoint("order.safetensors", {.model = &net, .optimizer = &optimizer, .scheduler = &schedule});
  CHECK(optimizer.lr(0) == 0.125);
  CHECK(optimizer.lr(1) == 0.0625);
  CHECK(optimizer.state_dict().at("param_groups.0.weight_decay").item<double>() == 0.125);
  CHECK(optimizer.state_dict().at("param_groups.1.weight_decay").item<double>() == 0);
  a.train(2);
  for (int i = 0; i < 2; ++i) net.step(optimizer, 1), schedule.step();
  CHECK(ls::nn::parameter_hash(net) == ls::nn::parameter_hash(a.net));
  CHECK(optimizer.lr(0) == a.optimizer.lr(1));
  CHECK(optimizer.lr(1) == a.optimizer.lr(0));
}

TEST_CASE("parameters that were one group, and are two now, keep the new options but the learning rate") {
  Net one, two;
  AdamW before(one.all(), {.lr = 0.25, .weight_decay = 0.125});
  ls::optim::StepLR schedule(before, {.step_size = 1, .gamma = 0.5});
  one.step(before, 1), schedule.step();
  AdamW after({{.params = two.some(false), .weight_decay = 0.0}, {.params = two.some(true)}},
              {.lr = 1, .weight_decay = 0.5});
  after.load_state_dict(before.state_dict(&one), &two);
  const ls::StateDict state = after.state_dict(&two);
  CHECK(same_bits(part(state, "state."), part(before.state_dict(&one), "state.")));
  for (const char* group : {"param_groups.0.", "param_groups.1."}) {
    CHECK(state.at(std::string(group) + "lr").item<double>() == 0.125);
    CHECK(state.at(std::string(group) + "initial_lr").item<double>() == 0.25);
  }
  CHECK(state.at("param_groups.0.weight_decay").item<double>() == 0);
  CHECK(state.at("param_groups.1.weight_decay").item<double>() == 0.5);

  after.set_lr(0, 0.75);  // the groups' rates differ, so that one group for both keeps its own
  before.load_state_dict(after.state_dict(&two), &one);
  CHECK(before.lr() == 0.125);
  CHECK(before.state_dict().at("param_groups.0.weight_decay").item<double>() == 0.125);
}

TEST_CASE("state by name without a model is loaded by its indices") {
  Trainer a, b;
  a.train(2);
  ls::save_checkpoint("alone.safetensors", a.parts());
  ls::load_checkpoint("alone.safetensors", {.optimizer = &b.optimizer});
  CHECK(same_bits(a.optimizer.state_dict(), b.optimizer.state_dict()));
}

TEST_CASE("a state whose names are not those of the optimizer is refused with the names, and changes nothing") {
  Trainer a;
  a.train(1);
  const ls::StateDict state = a.optimizer.state_dict(&a.net);
  Net net;
  Parameters other = net.some(true);
  other.push_back(net.body[2].parameters()[1]);
  AdamW optimizer(other, {});
  net.step(optimizer, 1);
  const ls::StateDict before = optimizer.state_dict();
  const std::string message = error_of([&] { optimizer.load_state_dict(state, &net); });
  CHECK(contains(message, "missing in the state: \"body.2.bias\"; missing in the optimizer: \"body.0.bias\""));
  CHECK(contains(error_of([&] { optimizer.load_state_dict(state, &net.body); }),
                 "parameter 0 of AdamW, (4, 3) f32 cpu, is not in the model"));
  CHECK(same_bits(optimizer.state_dict(), before));
  AdamW fewer(net.some(true), {});
  CHECK(contains(error_of([&] { fewer.load_state_dict(state); }), "the state has 4 parameters, the optimizer 3"));
}

TEST_CASE("a checkpoint of an older version, with the state by index, loads with and without the model") {
  const ls::StateDict old = golden("checkpoint_by_index");
  ls::save_checkpoint("empty.safetensors", {});
  ls::StateDict file;  // with the random state of this version
  for (const auto& [name, tensor] : old)
    file.insert(name, name == "random.state" ? ls::load("empty.safetensors").at(name) : tensor);
  ls::save(file, "old.safetensors", {{"lockstep_checkpoint", "1"}});
  for (const bool with_model : {false, true}) {
    Trainer a;
    a.train(1);
    ls::CheckpointParts parts = a.parts();
    if (!with_model) parts.model = nullptr;
    ls::load_checkpoint("old.safetensors", parts);
    const ls::StateDict state = a.optimizer.state_dict();
    for (const auto& entry : part(old, "optimizer."))
      CHECK_MESSAGE(ls::equal(state.at(entry.first), entry.second), entry.first);
    CHECK(a.schedule.steps() == 2);
    CHECK(a.optimizer.lr(1) == 0.125);
  }
}

TEST_CASE("the initial rate is saved, so that a scheduler after a load does not start from the decayed rate") {
  Net net;
  AdamW a(net.all(), {.lr = 0.5}), b(net.all(), {.lr = 0.125});
  CHECK_FALSE(a.state_dict().contains("param_groups.0.initial_lr"));
  ls::optim::StepLR decay(a, {.step_size = 1, .gamma = 0.5});
  decay.step();
  b.load_state_dict(a.state_dict());
  CHECK(b.lr() == 0.25);
  const ls::optim::StepLR again(b, {.step_size = 1, .gamma = 0.5});
  CHECK(b.lr() == 0.5);
  CHECK(same_bits(again.state_dict(), ls::StateDict{{"last_epoch", ls::tensor(std::int64_t{0})},
                                                    {"base_lrs", ls::tensor({0.5}, {.dtype = ls::kFloat64})}}));
}

TEST_CASE("a list of names stands for a model: pieces of parameters save and load their state under given names") {
  const auto state_of = [](double lr, int steps) {
    const auto a = parameter({1, 2, 3}), b = parameter({});
    AdamW optimizer({a, b}, {.lr = lr});
    for (int i = 0; i < steps; ++i) {
      set_grad(a, {1, 2, 3});
      set_grad(b, {});
      optimizer.step();
    }
    return optimizer.shared_state({{"fc.weight", a}, {"fc.bias", b}, {"unused", parameter({1})}}).clone();
  };
  const ls::StateDict state = state_of(0.5, 2);
  CHECK(state.at("state.fc.weight.exp_avg").shape() == ls::Shape{3});
  CHECK(state.at("state.fc.bias.exp_avg_sq").shape() == ls::Shape{0});
  CHECK(state.at("state.fc.bias.step").item<std::int64_t>() == 2);
  CHECK(values(state.at("param_group.fc.bias")) == std::vector<double>{0, 1});

  const auto bias = parameter({}), weight = parameter({1, 2, 3});  // in the other order
  AdamW optimizer({bias, weight}, {.lr = 1});
  const ls::optim::NamedParameters names = {{"fc.weight", weight}, {"fc.bias", bias}};
  optimizer.prepare_load(state, names)();
  CHECK(optimizer.lr() == 0.5);
  const ls::StateDict loaded = optimizer.shared_state(names);
  for (const char* key : {"state.fc.weight.exp_avg", "state.fc.weight.exp_avg_sq", "state.fc.weight.step",
                          "state.fc.bias.exp_avg", "state.fc.bias.step"})
    CHECK(ls::equal(loaded.at(key), state.at(key)));
  CHECK(contains(error_of([&] {
                   optimizer.prepare_load(state, {{"fc.weight", weight}, {"bias", bias}});
                 }),
                 "missing in the state: \"bias\"; missing in the optimizer: \"fc.bias\""));
  CHECK(contains(error_of([&] { optimizer.prepare_load(state, {{"fc.weight", weight}}); }), "is not in the model"));
  CHECK(optimizer.shared_state({{"fc.weight", weight}}).contains("state.0.step"));  // by index: a name is missing
}

TEST_CASE("shared_state shares the optimizer's tensors, and state_dict copies them") {
  const auto p = parameter({1, 2});
  AdamW optimizer({p});
  const auto step = [&] {
    set_grad(p, {1, 2});
    optimizer.step();
  };
  step();
  const ls::Tensor shared = optimizer.shared_state({{"p", p}}).at("state.p.exp_avg");
  const ls::Tensor copied = optimizer.state_dict().at("state.0.exp_avg");
  const std::vector<double> before = values(copied);
  CHECK(values(shared) == before);
  step();
  CHECK(values(shared) != before);
  CHECK(values(copied) == before);
}
