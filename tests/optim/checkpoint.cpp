// save_checkpoint and load_checkpoint.
#include <cstdio>
#include <fstream>
#include <optional>

#include "tests/optim/support.h"
#include "tests/support/files.h"

namespace {

struct Net : ls::nn::Module {
  ls::nn::Sequential& body;
  explicit Net(std::int64_t hidden = 16)
      : body(add<ls::nn::Sequential>("body", ls::nn::Linear(4, hidden), ls::nn::GELU(), ls::nn::Dropout(0.3),
                                     ls::nn::Linear(hidden, 2))) {}
  ls::Tensor forward(const ls::Tensor& x) const override { return body(x); }
};

struct Trainer {
  Net net;
  ls::optim::AdamW optimizer{net.parameters(), {.lr = 1e-2}};
  ls::optim::CosineAnnealingLR schedule{optimizer, {.t_max = 20}};
  explicit Trainer(std::int64_t hidden = 16) : net(hidden) {}

  void train(int steps) {
    for (int i = 0; i < steps; ++i) {
      const ls::Tensor x = ls::randn({8, 4});  // drawn here, so that the random state must be restored, too
      optimizer.zero_grad();
      ls::mean(net(x) * net(x)).backward();
      optimizer.step();
      schedule.step();
    }
  }
  ls::CheckpointParts parts() { return {.model = &net, .optimizer = &optimizer, .scheduler = &schedule}; }
};

// A list of all values that a load may change.
struct Everything {
  std::uint64_t parameters;
  ls::StateDict optimizer, schedule;
  std::vector<std::uint64_t> random;
  explicit Everything(Trainer& t)
      : parameters(ls::nn::parameter_hash(t.net)), optimizer(t.optimizer.state_dict()),
        schedule(t.schedule.state_dict()), random(ls::random::state()) {}
  bool operator==(const Everything& other) const {
    return parameters == other.parameters && same_bits(optimizer, other.optimizer) &&
           same_bits(schedule, other.schedule) && random == other.random;
  }
};

}  // namespace

TEST_CASE("a run that was saved, and loaded into new objects, ends with the bits of an uninterrupted one") {
  ls::manual_seed(5);
  Trainer a;
  a.train(10);
  ls::save_checkpoint("resume.safetensors", a.parts());
  a.train(10);
  const Everything whole(a);

  ls::manual_seed(99);
  Trainer b;
  b.train(3);
  ls::load_checkpoint("resume.safetensors", b.parts());
  b.train(10);
  CHECK(Everything(b) == whole);
}

TEST_CASE("a rate that was set by hand survives a checkpoint") {
  Trainer a, b;
  a.schedule.step();
  a.optimizer.set_lr(0.75);
  ls::save_checkpoint("rate.safetensors", a.parts());
  ls::load_checkpoint("rate.safetensors", b.parts());
  CHECK(b.optimizer.lr() == 0.75);
}

TEST_CASE("user-defined tensors and texts are saved and loaded with the checkpoint") {
  Trainer a;
  ls::StateDict extra = {{"epoch", ls::tensor(std::int64_t{7})}}, loaded;
  ls::Metadata metadata = {{"name", "first try"}}, text;
  ls::save_checkpoint("extra.safetensors", {.model = &a.net, .extra = &extra, .metadata = &metadata});
  ls::load_checkpoint("extra.safetensors", {.extra = &loaded, .metadata = &text});
  CHECK(loaded.size() == 1);
  CHECK(loaded.at("epoch").item<std::int64_t>() == 7);
  CHECK(text.at("name") == "first try");
}

TEST_CASE("a checkpoint of another model is refused with file and key, and changes nothing") {
  Trainer small(8), large(16);
  small.train(2);
  ls::save_checkpoint("small.safetensors", small.parts());
  large.train(1);
  const Everything before(large);
  const auto refused = [&](const ls::CheckpointParts& parts) {
    const std::string message = error_of([&] { ls::load_checkpoint("small.safetensors", parts); });
    CHECK(Everything(large) == before);
    CHECK(contains(message, "small.safetensors"));
    return message;
  };
  CHECK(contains(refused({.model = &large.net}), "body.0"));
  CHECK(contains(refused({.optimizer = &large.optimizer}), "state.body.0.weight.exp_avg"));
  refused(large.parts());
}

TEST_CASE("a part that the checkpoint lacks is an error that names it, and changes nothing") {
  Trainer a, b;
  ls::save_checkpoint("model_only.safetensors", {.model = &a.net});
  const Everything before(b);
  const std::string message = error_of([&] { ls::load_checkpoint("model_only.safetensors", b.parts()); });
  CHECK(contains(message, "\"optimizer.\""));
  CHECK(Everything(b) == before);
  ls::load_checkpoint("model_only.safetensors", {.model = &b.net});
  CHECK(ls::nn::parameter_hash(a.net) == ls::nn::parameter_hash(b.net));
}

TEST_CASE("a file of weights loads into a model alone, and is an error that says so for every other part") {
  Trainer a, b;
  ls::save(a.net.state_dict(), "weights.safetensors", {{"source", "elsewhere"}});
  std::ofstream("weights.safetensors.index.json")
      << R"({"weight_map": {"body.0.weight": "weights.safetensors", "body.0.bias": "weights.safetensors",)"
      << R"("body.3.weight": "weights.safetensors", "body.3.bias": "weights.safetensors"}})";
  ls::StateDict extra;
  const ls::CheckpointParts with_optimizer{.model = &b.net, .optimizer = &b.optimizer},
      with_scheduler{.model = &b.net, .scheduler = &b.schedule}, with_extra{.model = &b.net, .extra = &extra};
  for (const std::string path : {"weights.safetensors", "weights.safetensors.index.json"}) {
    const Everything before(b);
    for (const ls::CheckpointParts& parts : {with_optimizer, with_scheduler, with_extra, b.parts()})
      CHECK(error_of([&] { ls::load_checkpoint(path, parts); }) ==
            "load_checkpoint: " + path +
                " is a file of weights, not a checkpoint with the state of an optimizer, a scheduler or a caller; pass "
                ".model alone");
    CHECK(Everything(b) == before);
    Trainer other;
    const std::vector<std::uint64_t> random = ls::random::state();
    ls::Metadata metadata;
    ls::load_checkpoint(path, {.model = &other.net, .metadata = &metadata});
    CHECK(ls::nn::parameter_hash(other.net) == ls::nn::parameter_hash(a.net));
    CHECK(metadata.contains("source") == path.ends_with("safetensors"));
    CHECK(ls::random::state() == random);
  }
  Trainer wide(8);
  const std::string shapes = error_of([&] { ls::load_checkpoint("weights.safetensors", {.model = &wide.net}); });
  CHECK(shapes.starts_with("load_checkpoint: weights.safetensors: 3 of another shape: \"body.0."));
  // load_checkpoint has no options to pass.
  const std::string advice = "\nload_weights loads such files with options: .rename, .transpose, .strict";
  CHECK(shapes.ends_with(advice));
  ls::StateDict prefixed;
  for (const auto& [name, tensor] : a.net.state_dict()) prefixed.insert("model." + name, tensor);
  ls::save(prefixed, "prefixed.safetensors");
  const std::string names = error_of([&] { ls::load_checkpoint("prefixed.safetensors", {.model = &b.net}); });
  CHECK_MESSAGE((names.ends_with(advice) && !contains(names, "{{")), names);
}

TEST_CASE("a checkpoint without a random state loads into a model alone, and another format is an error") {
  Trainer a, b;
  ls::save_checkpoint("whole.safetensors", a.parts());
  ls::StateDict without;
  for (const auto& [name, tensor] : ls::load("whole.safetensors")) {
    if (name != "random.state") without.insert(name, tensor);
  }
  ls::save(without, "without.safetensors", {{"lockstep_checkpoint", "1"}});
  const std::vector<std::uint64_t> random = ls::random::state();
  CHECK(contains(error_of([&] { ls::load_checkpoint("without.safetensors", b.parts()); }),
                 "\"random.state\" is missing"));
  ls::load_checkpoint("without.safetensors", {.model = &b.net});
  CHECK(ls::nn::parameter_hash(b.net) == ls::nn::parameter_hash(a.net));
  CHECK(ls::random::state() == random);
  ls::save(without, "later.safetensors", {{"lockstep_checkpoint", "9"}});
  CHECK(error_of([&] { ls::load_checkpoint("later.safetensors", {.model = &b.net}); }) ==
        "load_checkpoint: later.safetensors is a checkpoint of format \"9\", this version reads format 1; read it with "
        "load()");
}

TEST_CASE("an invalid random state is refused, and changes nothing") {
  Trainer a, b;
  ls::save_checkpoint("random.safetensors", a.parts());
  ls::Metadata metadata;
  const ls::StateDict dict = ls::load("random.safetensors", &metadata);
  ls::StateDict broken;
  for (const auto& [name, tensor] : dict) broken.insert(name, name == "random.state" ? tensor.slice(0, 0, 0) : tensor);
  ls::save(broken, "broken.safetensors", {{"lockstep_checkpoint", "1"}});
  const Everything before(b);
  CHECK(contains(error_of([&] { ls::load_checkpoint("broken.safetensors", b.parts()); }), "broken.safetensors"));
  CHECK(Everything(b) == before);
}

TEST_CASE("a file with random state of format 1 gives its weights, with a warning") {
  Trainer a, b;
  ls::save_checkpoint("format.safetensors", a.parts());
  ls::StateDict old;
  for (const auto& [name, tensor] : ls::load("format.safetensors"))
    old.insert(name, name == "random.state" ? ls::tensor({7, 0, 3, 5}) : tensor);
  ls::save(old, "format.safetensors", {{"lockstep_checkpoint", "1"}});
  const std::vector<std::uint64_t> before = ls::random::state();
  const std::vector<std::string> warnings =
      warnings_of([&] { ls::load_checkpoint("format.safetensors", {.model = &b.net}); });
  CHECK(ls::nn::parameter_hash(b.net) == ls::nn::parameter_hash(a.net));
  CHECK(ls::random::state() == before);
  REQUIRE(warnings.size() == 1);
  CHECK(contains(warnings[0], "format 1"));
}

TEST_CASE("impossible numbers are refused, and change nothing") {
  Trainer a, b;
  ls::optim::StepLR growing(a.optimizer, {.step_size = 1, .gamma = 10});
  ls::CheckpointParts parts = a.parts();
  parts.scheduler = &growing;
  a.train(2);
  growing.step();
  ls::save_checkpoint("numbers.safetensors", parts);
  const ls::StateDict good = ls::load("numbers.safetensors");
  const auto count = [](std::int64_t value) { return ls::tensor(value); };
  const auto number = [](double value) { return ls::tensor(value, {.dtype = ls::kFloat64}); };
  const auto numbers = [](double value) { return ls::full({1}, value, {.dtype = ls::kFloat64}); };
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
  struct Case {
    std::string key;
    ls::Tensor value;
    std::string expected;
  };
  for (const Case& c : std::vector<Case>{
           {"scheduler.last_epoch", count(400), "the rate of group 0 at step 400 is inf"},
           {"scheduler.last_epoch", count(kLargest), "\"last_epoch\" is 9223372036854775807, expected a count"},
           {"scheduler.last_epoch", count(kLargest - 1), "expected a count"},
           {"scheduler.last_epoch", count(-1), "expected a count"},
           {"scheduler.base_lrs", numbers(1e299), "the rate of group 0 at step 1 is 1e+300"},
           {"scheduler.base_lrs", numbers(kNan), "base_lrs is nan"},
           {"scheduler.base_lrs", numbers(kInf), "base_lrs is inf"},
           {"scheduler.base_lrs", numbers(-1e-9), "base_lrs is -1e-09"},
           {"optimizer.param_groups.0.lr", number(kInf), "lr is inf"},
           {"optimizer.param_groups.0.betas", ls::tensor(std::vector<double>{1, 0.9}).to(ls::kFloat64), "beta1 is 1"},
           {"optimizer.param_groups.0.betas", number(0.9), "expected 1-D f64"},
           {"optimizer.param_groups.0.betas", numbers(0.9), "betas\" has 1 numbers, expected 2"},
           {"optimizer.param_groups.0.eps", number(kNan), "eps is nan"},
           {"optimizer.param_groups.0.initial_lr", number(-2), "initial_lr is -2"},
           {"optimizer.param_group.body.0.weight", count(0), "expected 1-D i64"},
           {"optimizer.param_group.body.0.weight", ls::tensor({1, 0}), "is (1, 0), expected a group below 1"},
           {"optimizer.param_group.body.0.weight", ls::tensor({0, 4}), "is (0, 4), expected a group below 1"},
           {"optimizer.param_group.body.0.weight", ls::tensor({0, -1}), "and an index below 4"},
           {"optimizer.state.body.0.weight.step", count(kLargest), "weight.step\" is 9223372036854775807"},
           {"random.state", ls::tensor({1, 2}), "2 numbers are not a state"},
           {"random.state", ls::tensor({2, 7, -1, 0, 5}), "do not exist"},
           {"random.state", ls::tensor({7, 0, 0, 5}), "random.state has format 1"},
           {"model.body.0.weight", ls::zeros({3}), "body.0.weight"}}) {
    INFO(c.key, ": ", c.expected);
    ls::StateDict broken;
    for (const auto& [name, tensor] : good) broken.insert(name, name == c.key ? c.value : tensor);
    ls::save(broken, "broken.safetensors", {{"lockstep_checkpoint", "1"}});
    ls::optim::StepLR schedule(b.optimizer, {.step_size = 1, .gamma = 10});
    b.optimizer.set_lr(0.25);
    ls::CheckpointParts into = b.parts();
    into.scheduler = &schedule;
    const Everything before(b);
    const ls::StateDict schedule_before = schedule.state_dict();
    const std::string message = error_of([&] { ls::load_checkpoint("broken.safetensors", into); });
    CHECK_MESSAGE(contains(message, c.expected), message);
    CHECK(Everything(b) == before);
    CHECK(same_bits(schedule.state_dict(), schedule_before));
    CHECK(b.optimizer.lr() == 0.25);
  }
}

TEST_CASE("a truncated checkpoint is an IoError, and changes nothing") {
  Trainer a;
  a.train(1);
  ls::save_checkpoint("whole.safetensors", a.parts());
  const std::string bytes = content_of_file("whole.safetensors");
  const Everything before(a);
  for (std::size_t length : {std::size_t{0}, std::size_t{7}, bytes.size() / 3, bytes.size() - 1}) {
    std::ofstream("cut.safetensors", std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(length));
    CHECK_THROWS_AS(ls::load_checkpoint("cut.safetensors", a.parts()), ls::IoError);
    CHECK(Everything(a) == before);
  }
}
