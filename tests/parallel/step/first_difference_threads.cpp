// Runs in different modes are recorded and compared: equal ones are equal, and every change of one bit is named.
#include <bit>
#include <filesystem>
#include <optional>
#include <random>
#include <set>
#include <span>

#include "lockstep/tensor/random/random.h"
#include "tests/support/groups.h"
#include "tools/diff/first_difference.h"

namespace {

namespace par = ls::parallel;
namespace nn = ls::nn;

constexpr int kMicroBatches = 4, kSteps = 3, kWidth = 6;

struct Block : nn::Module {
  nn::LayerNorm& norm = add<nn::LayerNorm>("norm", ls::Shape{kWidth});
  nn::Linear& fc = add<nn::Linear>("fc", kWidth, kWidth);
  nn::Tanh& act = add<nn::Tanh>("act");
  nn::Dropout& drop = add<nn::Dropout>("drop", 0.2);
  bool recomputes = false;
  ls::Tensor forward(const ls::Tensor& x) const override {
    const auto body = [this](const ls::Tensor& in) { return drop(act(fc(norm(in)))); };
    return x + (recomputes ? ls::autograd::checkpoint(body, x) : body(x));
  }
};

struct Net : nn::Module {
  nn::Linear& in = add<nn::Linear>("in", 3, kWidth);
  nn::ModuleList& blocks = add<nn::ModuleList>("blocks");
  nn::BatchNorm1d& norm = add<nn::BatchNorm1d>("norm", kWidth);
  nn::Linear& head = add<nn::Linear>("head", kWidth, 2);
  explicit Net(bool recomputes = false) {
    for (int i = 0; i < 2; ++i) {
      Block block;
      block.recomputes = recomputes;
      blocks.push_back(std::move(block));
    }
    std::uint32_t salt = 0;
    const ls::NoGradGuard no_grad;
    for (const nn::Parameter& p : parameters()) p->copy_(numbers(p->shape(), {}, ++salt));
  }
  ls::Tensor forward(const ls::Tensor& x) const override {
    ls::Tensor y = in(x);
    for (const nn::Module& block : blocks) y = block(y);
    return head(norm(y));
  }
};

struct Layout {
  std::string name;
  int ranks = 1, stage = -1;  // stage 0: DistributedDataParallel; -1: one process
};
const std::vector<Layout> kLayouts = {{"accumulate"},   {"dp"},           {"ddp2", 2, 0},  {"ddp4", 4, 0},
                                      {"stage1", 2, 1}, {"stage2", 4, 2}, {"stage3", 2, 3}};

// A change of one bit.
struct Fault {
  enum class Kind { kNone, kForward, kBackward, kReduction, kOptimizer } kind = Kind::kNone;
  std::string name = {};  // of the module or parameter
  int step = 0, micro_batch = 0, rank = 0;
  std::int64_t element = 0;
};

void flip(const ls::Tensor& t, std::int64_t element, std::uint32_t mask) {
  static_cast<std::uint32_t*>(t.raw_data())[element] ^= mask;
}

// Changes a gradient in the first bucket.
class FaultyHook final : public par::CommHook {
 public:
  FaultyHook(Fault fault, const int& step, int rank) : fault_(std::move(fault)), step_(step), rank_(rank) {}
  std::shared_ptr<par::Work> start(const par::GradBucket& bucket, par::ProcessGroup& group) override {
    for (std::size_t i = 0; i < bucket.names.size(); ++i) {
      if (step_ == fault_.step && bucket.names[i] == fault_.name && rank_ == fault_.rank)
        flip(bucket.gradients[i], fault_.element, 1u << 20);
    }
    return group.all_reduce_scaled(bucket.buffer, 1.0 / group.size());
  }
  std::string describe() const override { return "faulty"; }

 private:
  Fault fault_;
  const int& step_;
  int rank_;
};

nn::Module& module_at(nn::Module& module, const std::string& path) {
  for (nn::Module* const child : module.children()) {
    if (path == child->name()) return *child;
    if (path.starts_with(child->name() + ".")) return module_at(*child, path.substr(child->name().size() + 1));
  }
  return module;
}

void install(nn::Module& model, const Fault& fault, const int& step) {
  nn::Module* const module = &module_at(model, fault.name);
  const auto is_now = [fault, &step] {
    return step == fault.step && ls::random::current_micro_batch() == fault.micro_batch;
  };
  module->register_forward_hook([=](const nn::Module&, const std::vector<ls::Tensor>&, const ls::Tensor& y) {
    if (!is_now() || !ls::autograd::grad_mode()) return ls::Tensor();
    if (fault.kind == Fault::Kind::kForward) flip(y, fault.element, 1);
    if (fault.kind == Fault::Kind::kBackward)
      y.register_hook([=](const ls::Tensor& gradient) {
        const ls::Tensor changed = gradient.contiguous().clone();
        flip(changed, fault.element, 1u << 20);
        return changed;
      });
    return ls::Tensor();
  });
}

void change_parameter(const std::vector<par::ShardedParameter>& parameters, const Fault& fault) {
  for (const par::ShardedParameter& each : parameters) {
    for (std::int64_t i = 0; i < each.part.numel && each.name == fault.name; ++i) {
      if (each.part.at(i) == fault.element) flip(each.parameter.master(), i, 1);
    }
  }
}

template <class Mode>
std::uint64_t train(Mode& run, const std::string& directory, const Fault& fault, int& step,
                    bool backward_of_user = false) {
  const int rank = run.group() ? run.group()->rank() : 0, ranks = run.group() ? run.group()->size() : 1;
  std::optional<par::Recorder> recorder;
  if (!directory.empty()) recorder.emplace(run, directory, par::RecorderOptions{.values = true});
  ls::optim::AdamW optimizer(run.parameters(), {.lr = 0.05});
  const nn::MSELoss criterion;
  const std::int64_t rows = 24 / ranks;
  for (step = 0; step < kSteps; ++step) {
    const auto salt = static_cast<std::uint32_t>(7 + step);
    const ls::Tensor x = numbers({24, 3}, {}, salt).narrow(0, rank * rows, rows),
                     y = numbers({24, 2}, {}, salt + 100).narrow(0, rank * rows, rows);
    optimizer.zero_grad();
    if (backward_of_user)
      criterion(run(x), y).backward();
    else
      run.backward(x, y, [&](const ls::Tensor& in, const ls::Tensor& out) { return criterion(run.module()(in), out); });
    run.clip_grad_norm_(0.5);
    optimizer.step();
    const bool is_on_all = ranks == 1 || run.named_parameters()[0].parameter.sharding() == nn::Sharding::kPiece;
    if (fault.kind == Fault::Kind::kOptimizer && step == fault.step && (is_on_all || rank == fault.rank))
      change_parameter(run.named_parameters(), fault);
  }
  recorder.reset();
  std::uint64_t hash = 0;
  run.gathered([&] { hash = nn::parameter_hash(run.module()); });
  return hash;
}

struct Variant {
  bool recomputes = false, backward_of_user = false;
};

// Trains and records one layout. Returns the hash of the parameters.
std::uint64_t record(const Layout& layout, const std::string& directory, const Fault& fault = {},
                     const Variant& variant = {}) {
  if (!directory.empty()) std::filesystem::remove_all(directory);
  ls::manual_seed(1);
  if (layout.stage < 0) {
    Net model(variant.recomputes);
    int step = 0;
    install(model, fault, step);
    if (layout.name == "dp") {
      par::DataParallel run(model, {"cpu:0", "cpu:1", "cpu:2", "cpu:3"});
      return train(run, directory, fault, step, variant.backward_of_user);
    }
    par::GradientAccumulation run(model, {.micro_batches = kMicroBatches});
    return train(run, directory, fault, step, variant.backward_of_user);
  }
  std::uint64_t hash = 0;
  with_group("local", layout.ranks, [&](const Group& group) {
    Net model(variant.recomputes);
    int step = 0;
    install(model, fault, step);
    const int micro_batches = kMicroBatches / layout.ranks;
    std::uint64_t own = 0;
    if (layout.stage == 0) {
      par::DistributedDataParallel run(model, group, {.micro_batches_per_rank = micro_batches});
      if (fault.kind == Fault::Kind::kReduction)
        run.register_comm_hook(std::make_shared<FaultyHook>(fault, step, group->rank()));
      own = train(run, directory, fault, step, variant.backward_of_user);
    } else {
      par::ShardedDataParallel run(
          model, group, {.stage = layout.stage, .units = {"blocks.*"}, .micro_batches_per_rank = micro_batches});
      own = train(run, directory, fault, step, variant.backward_of_user);
    }
    if (group->rank() == 0) hash = own;
  });
  return hash;
}

diff::Comparison compare(const std::string& a, const std::string& b) {
  return diff::compare(diff::read_run(a), diff::read_run(b), {});
}

// What lockstep-diff has to say of a fault, in a run of this layout.
void check_named(const Layout& layout, const Fault& fault, const diff::Comparison& comparison) {
  using Kind = Fault::Kind;
  INFO(layout.name, ", kind ", static_cast<int>(fault.kind), ", ", fault.name, ", step ", fault.step, ", micro-batch ",
       fault.micro_batch, ", rank ", fault.rank, ", element ", fault.element);
  REQUIRE(comparison.first);
  const diff::Difference& first = *comparison.first;
  INFO("found: ", diff::describe(first.key));
  const diff::What what = fault.kind == Kind::kForward     ? diff::What::kOutput
                          : fault.kind == Kind::kBackward  ? diff::What::kInputGradient
                          : fault.kind == Kind::kReduction ? diff::What::kGradient
                                                           : diff::What::kParameter;
  CHECK(first.key.what == what);
  CHECK(first.key.step == fault.step);
  // The gradient of act's output is that of drop's input.
  CHECK(first.key.name == (fault.kind == Kind::kBackward ? fault.name.substr(0, 9) + "drop" : fault.name));
  CHECK(first.key.micro_batch == (what <= diff::What::kInputGradient ? fault.micro_batch : -1));
  CHECK(first.element == fault.element);
  CHECK(first.differing == 1);
  const int ranks = layout.ranks;
  if (what <= diff::What::kInputGradient) CHECK(first.b.rank == fault.micro_batch * ranks / kMicroBatches);
  const bool drifts = what == diff::What::kParameter && layout.stage == 0;
  CHECK(first.within == (drifts ? "faulty_" + layout.name : ""));
  if (drifts) CHECK((fault.rank == 0 ? first.ranks_a : first.ranks_b)[0] == fault.rank);
  if (fault.kind == Kind::kForward || fault.kind == Kind::kOptimizer)
    CHECK(std::popcount(first.a.bits ^ first.b.bits) == 1);
}

std::vector<Fault> random_faults(const Layout& layout, std::mt19937& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  std::vector<Fault> faults;
  const auto add = [&](Fault::Kind kind, const std::string& name, std::int64_t elements) {
    faults.push_back({.kind = kind,
                      .name = name,
                      .step = below(kSteps),
                      .micro_batch = below(kMicroBatches),
                      .rank = below(layout.ranks),
                      .element = below(static_cast<int>(elements))});
  };
  const std::string block = "blocks." + std::to_string(below(2));
  add(Fault::Kind::kForward, block + ".fc", 6 * kWidth);
  add(Fault::Kind::kForward, block, 6 * kWidth);
  add(Fault::Kind::kForward, "head", 6 * 2);
  add(Fault::Kind::kBackward, block + ".act", 6 * kWidth);
  add(Fault::Kind::kOptimizer, block + ".fc.weight", kWidth * kWidth);
  add(Fault::Kind::kOptimizer, "head.bias", 2);
  if (layout.stage == 0) add(Fault::Kind::kReduction, "in.weight", 3 * kWidth);
  return faults;
}

}  // namespace

TEST_CASE("runs of all modes are equal, tensor by tensor, and recording changes no bits") {
  for (const bool recomputes : {false, true}) {
    const std::uint64_t hash = record(kLayouts[0], "", {}, {.recomputes = recomputes});
    for (const Layout& layout : kLayouts) {
      CAPTURE(layout.name);
      CHECK(record(layout, layout.name, {}, {.recomputes = recomputes}) == hash);
    }
    for (std::size_t i = 0; i < kLayouts.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        CAPTURE(kLayouts[i].name);
        CAPTURE(kLayouts[j].name);
        const diff::Comparison comparison = compare(kLayouts[i].name, kLayouts[j].name);
        if (comparison.first) FAIL_CHECK(diff::describe(comparison.first->key));
        CHECK(comparison.steps == kSteps);
        CHECK(comparison.only_a + comparison.only_b == 0);
        // In a step the outputs of 14 modules and the input, gradients of 14 parameters and, of inputs, of at least 11.
        CHECK(comparison.equal > kSteps * kMicroBatches * (15 + 14 + 9) + kSteps * (2 * 14 + 2));
      }
    }
  }
}

TEST_CASE("a change of one bit is named: step, micro-batch, module, tensor, element and rank") {
  record(kLayouts[0], "reference");
  std::mt19937 random(3);
  for (const Layout& layout : kLayouts) {
    for (const Fault& fault : random_faults(layout, random)) {
      const std::string directory = "faulty_" + layout.name;
      record(layout, directory, fault);
      check_named(layout, fault, compare("reference", directory));
    }
  }
}

TEST_CASE("a backward that the user calls is recorded like a step") {
  record(kLayouts[0], "reference");
  for (const Layout& layout : {Layout{"ddp4", 4, 0}, Layout{"stage1", 4, 1}, Layout{"stage3", 4, 3}}) {
    CAPTURE(layout.name);
    record(layout, "own_" + layout.name, {}, {.backward_of_user = true});
    const diff::Comparison comparison = compare("reference", "own_" + layout.name);
    if (comparison.first) FAIL_CHECK(diff::describe(comparison.first->key));
    CHECK(comparison.only_a + comparison.only_b == 0);
  }
  // The sum of the replicas' gradients is not recorded, as nothing tells when it is complete.
  record({"dp"}, "own_dp", {}, {.backward_of_user = true});
  const diff::Comparison comparison = compare("reference", "own_dp");
  CHECK(comparison.first->key.what ==
        diff::What::kMicroBatchGradient);  // times 1/4, as the loss is that of all samples
  CHECK(comparison.only_a == kSteps * 14);
  CHECK(comparison.only_b == 0);
}

TEST_CASE("a Recorder records the steps and modules that its options name, and refuses a directory with a record") {
  std::filesystem::remove_all("some");
  Net model;
  par::GradientAccumulation run(model, {.micro_batches = 2});
  const auto step = [&] {
    run.backward(numbers({4, 3}), numbers({4, 2}),
                 [&](const ls::Tensor& x, const ls::Tensor& y) { return nn::MSELoss()(model(x), y); });
  };
  {
    const par::Recorder recorder(run, "some/folder",
                                 {.modules = {"blocks.*.fc", "head"}, .first_step = 1, .last_step = 2});
    for (int i = 0; i < 4; ++i) step();
  }
  step();
  std::set<std::pair<std::int64_t, std::string>> found;
  for (const auto& [key, lines] : diff::read_run("some/folder").tensors) found.insert({key.step, key.name});
  std::set<std::pair<std::int64_t, std::string>> want;
  for (const int number : {1, 2}) {
    for (const char* const name : {"", "blocks.0.fc", "blocks.0.fc.weight", "blocks.0.fc.bias", "blocks.1.fc",
                                   "blocks.1.fc.weight", "blocks.1.fc.bias", "head", "head.weight", "head.bias"})
      want.insert({number, name});
  }
  for (const char* const name :
       {"blocks.0.fc.weight", "blocks.0.fc.bias", "blocks.1.fc.weight", "blocks.1.fc.bias", "head.weight", "head.bias"})
    want.insert({0, name});  // the parameters before step 1
  CHECK(found == want);
  CHECK_THROWS_WITH_AS(par::Recorder(run, "some/folder"),
                       "Recorder: some/folder/rank0.jsonl exists already\nRemove the directory, or name another one",
                       ls::IoError);
  CHECK_THROWS_WITH_AS(par::Recorder(run, "some/folder/rank0.jsonl/below"),
                       "Recorder: some/folder/rank0.jsonl/below: mkdir: Not a directory", ls::IoError);
}

TEST_CASE("other initial values, a run that ends earlier and a wrong filter are named") {
  record(kLayouts[0], "reference");
  const diff::RunRecord reference = diff::read_run("reference");
  const auto other = [](std::int64_t first_step, std::int64_t last_step, bool changes) {
    std::filesystem::remove_all("other");
    ls::manual_seed(1);
    Net model;
    if (changes) flip(model.head.bias, 1, 1);
    par::GradientAccumulation run(model, {.micro_batches = kMicroBatches});
    int step = 0;
    const par::Recorder recorder(run, "other", {.first_step = first_step, .last_step = last_step});
    train(run, "", {}, step);
  };
  other(0, -1, true);
  const diff::Comparison changed = compare("reference", "other");
  CHECK(diff::describe(changed.first->key) == "the parameter head.bias before step 0");
  other(0, 0, false);
  const diff::Comparison shorter = compare("reference", "other");
  CHECK_FALSE(shorter.first);
  CHECK_FALSE(shorter.is_equal());
  CHECK(shorter.steps_only_a == kSteps - 1);
  CHECK(shorter.steps_only_b == 0);
  CHECK(diff::compare(reference, diff::read_run("other"), {.step = 0}).is_equal());
  const auto compared = [&](const diff::Filter& filter) { (void)diff::compare(reference, reference, filter); };
  CHECK_THROWS_WITH_AS(compared({.step = 7}), "--step 7: no run has a tensor of it; the steps of reference are -1 to 2",
                       ls::IoError);
  CHECK_THROWS_WITH_AS(compared({.modules = {"block.0"}}),
                       "--module block.0: no run has a module of this path; reference has for example norm",
                       ls::IoError);
}

TEST_CASE("the groups of a mesh record into one directory") {
  for (const std::string directory : {"mesh_a", "mesh_b"}) {
    std::filesystem::remove_all(directory);
    with_group("local", 4, [&](const Group& group) {
      ls::manual_seed(1);
      const par::DeviceMesh mesh(group, {{"dp", 2}, {"tp", 2}});
      Net model;
      for (nn::Module* const each : model.modules()) {  // the ranks of tp, as threads, would draw different numbers
        if (dynamic_cast<nn::Dropout*>(each)) each->eval();
      }
      par::DistributedDataParallel run(model, mesh["dp"].group(), {.micro_batches_per_rank = 2});
      int step = 0;
      train(run, directory, {}, step);
    });
  }
  CHECK(compare("mesh_a", "mesh_b").is_equal());
  for (int rank = 0; rank < 4; ++rank) CHECK(std::filesystem::exists("mesh_a/rank" + std::to_string(rank) + ".jsonl"));
}

TEST_CASE("LOCKSTEP_RECORD records every run, each in a directory of its own") {
  std::filesystem::remove_all("environment");
  setenv("LOCKSTEP_RECORD", "environment", 1);
  setenv("LOCKSTEP_RECORD_VALUES", "1", 1);
  record({"accumulate"}, "");
  record({"ddp2", 2, 0}, "");
  unsetenv("LOCKSTEP_RECORD");
  unsetenv("LOCKSTEP_RECORD_VALUES");
  CHECK_FALSE(compare("environment", "environment/2").first);
  CHECK(std::filesystem::exists("environment/2/rank1.jsonl"));
  CHECK(std::filesystem::file_size("environment/rank0.values") > 0);
}

TEST_CASE("a record that no Recorder has written is an error that names file and line") {
  const auto read = [](const std::string& text) {
    diff::RunRecord run{.directory = "a", .tensors = {}};
    return diff::add_rank(run, 0, std::as_bytes(std::span(text)), "a/rank0.jsonl");
  };
  const std::string first = "{\"format\":1,\"rank\":0,\"ranks\":[0,1]}\n",
                    second =
                        "{\"step\":0,\"what\":\"output\",\"micro_batch\":0,\"name\":\"in\",\"call\":0,"
                        "\"dtype\":\"f32\",\"shape\":[6],\"hash\":\"12\"";
  CHECK(read(first + second + "}\n" + second) == std::vector<int>{0, 1});
  const auto check_error = [&](const std::string& text, const std::string& want) {
    CHECK_THROWS_WITH_AS(read(text), want.c_str(), ls::IoError);
  };
  check_error("", "a/rank0.jsonl: the file has no complete line");
  check_error("{\"format\":2}\n", "a/rank0.jsonl, line 1: format 2, expected 1: another version of Lockstep wrote it");
  check_error(first + second + ",\"part\":[0,6,6,4,3]}\n", "a/rank0.jsonl, line 2: \"part\" is no part of the shape");
  check_error(first + "{\"step\":0,\"what\":\"outputs\"}\n", "a/rank0.jsonl, line 2: \"what\" is \"outputs\"");
  CHECK_THROWS_AS(read(first + "{\n"), ls::IoError);
}

TEST_CASE("recording changes no bits of gradients that several backwards add up in a shared parameter") {
  const auto gradients = [](bool records) {
    std::filesystem::remove_all("shared");
    Net model;
    par::GradientAccumulation run(model, {.micro_batches = 1});
    std::optional<par::Recorder> recorder;
    if (records) recorder.emplace(run, "shared");
    for (std::uint32_t i = 0; i < 3; ++i) {
      ls::manual_seed(1);
      const ls::Tensor y = run(numbers({8, 3}, {}, i)), again = run(numbers({8, 3}, {}, i + 10));
      (y + again * y).sum().backward();
    }
    std::vector<float> values;
    for (const nn::Parameter& p : model.parameters()) {
      const std::vector<float> each = p->grad().to_vector<float>();
      values.insert(values.end(), each.begin(), each.end());
    }
    return values;
  };
  CHECK(gradients(true) == gradients(false));
}

TEST_CASE("a run is equal to itself: ranks without samples, parts of a model, gradients inside the loss") {
  for (const int stage : {0, 2}) {
    CAPTURE(stage);
    std::filesystem::remove_all("uneven");
    with_group("local", 2, [&](const Group& group) {
      ls::manual_seed(1);
      Net model;
      const auto train_on = [&](auto& run) {
        const par::Recorder recorder(run, "uneven");
        ls::optim::SGD optimizer(run.parameters(), {.lr = 0.05});
        const auto loss_fn = [&](const ls::Tensor& x, const ls::Tensor& y) {
          return nn::MSELoss()(model.head(model.norm(model.in(x))), y);  // never model(x)
        };
        const int batches = group->rank() == 0 ? 4 : 2;
        run.join(
            [&] {
              for (int i = 0; i < batches; ++i) {
                optimizer.zero_grad();
                const std::int64_t rows = group->rank() == 1 && i == 1 ? 0 : 6;
                run.backward(numbers({6, 3}).narrow(0, 0, rows), numbers({6, 2}).narrow(0, 0, rows), loss_fn);
                optimizer.step();
              }
            },
            {.shadow_step = [&] { optimizer.step(); }});
      };
      if (stage == 0) {
        par::DistributedDataParallel run(model, group);
        train_on(run);
      } else {
        par::ShardedDataParallel run(model, group, {.stage = stage});
        train_on(run);
      }
    });
    const diff::Comparison comparison = compare("uneven", "uneven");
    if (comparison.first) FAIL_CHECK(diff::describe(comparison.first->key));
    CHECK(comparison.steps == 4);
  }
  std::filesystem::remove_all("penalty");
  Net model;
  par::GradientAccumulation run(model, {.micro_batches = 2});
  {
    const par::Recorder recorder(run, "penalty");
    for (int i = 0; i < 2; ++i) {
      run.backward(numbers({6, 3}), numbers({6, 2}), [&](const ls::Tensor& x, const ls::Tensor& y) {
        const ls::Tensor in = x.clone().requires_grad_(true), loss = nn::MSELoss()(model.head(model.in(in)), y);
        return loss + ls::autograd::grad({loss}, {in}, {.create_graph = true})[0].square().sum();
      });
    }
  }
  CHECK(compare("penalty", "penalty").is_equal());
}
