// Models with replaced modules and frozen parameters in every training mode, and evaluation under InferenceGuard between
// the steps: all have the bits of one process.
#include "replace.h"
#include "tests/support/groups.h"

namespace par = ls::parallel;

namespace {

constexpr int kMicroBatches = 6;  // of the modes in one process

// The ranks that have the bits of one process with as many micro-batches: a power of two on each rank, or all on one.
struct Ranks {
  int count, micro_batches;
};
constexpr Ranks kRanks[] = {{1, 6}, {2, 8}, {3, 6}, {6, 6}};

struct Net : nn::Module {
  nn::Linear& fc = add<nn::Linear>("fc", 4, 6);
  nn::Sequential& body = add("body", nn::Sequential(nn::Linear(6, 6), nn::GELU(), nn::Linear(6, 6)));
  nn::LayerNorm& norm = add<nn::LayerNorm>("norm", ls::Shape{6});
  nn::Linear& head = add<nn::Linear>("head", 6, 2);
  Net() { set_values(); }
  void set_values() const {  // threads share the random streams, so initial values are set here
    const ls::NoGradGuard no_grad;
    std::uint32_t salt = 0;
    for (const nn::Parameter& p : parameters()) p->copy_(numbers(p->shape(), {}, ++salt));
  }
  ls::Tensor forward(const ls::Tensor& x) const override { return head(norm(body(ls::tanh(fc(x))))); }
};

// How a model is changed before its mode is constructed.
struct Change {
  const char* what;
  bool replaces;
  std::vector<std::string> freezes, unfreezes;
};

const std::vector<Change> kChanges = {
    {"replaced", true, {}, {}},
    {"low-rank corrections", true, {"*"}, {"*.down", "*.up", "body.*.down", "body.*.up"}},
    {"a new head", true, {"*"}, {"head"}},
    {"frozen layers", false, {"body", "fc.weight"}, {}},
    {"frozen biases", false, {"*.bias", "body.*.bias"}, {}},
};

// Returns the names of the frozen parameters.
std::vector<std::string> frozen_in(const nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& named : module.named_parameters()) {
    if (!named.second.master().requires_grad()) names.push_back(named.first);
  }
  return names;
}

void change(Net& net, const Change& by) {
  if (by.replaces) {
    net.replace("fc", Lora(std::move(net.fc)));
    net.replace("body.2", Lora(std::move(dynamic_cast<nn::Linear&>(net.body[2]))));
    net.replace("head", nn::Linear(6, 2));
    net.set_values();
  }
  for (const std::string& pattern : by.freezes) net.freeze(pattern);
  for (const std::string& pattern : by.unfreezes) net.unfreeze(pattern);
}

const ls::Tensor kX = numbers({24, 4}, {}, 90), kY = numbers({24, 2}, {}, 91);

ls::Tensor rows(const ls::Tensor& t, int rank, int ranks) {
  const std::int64_t count = t.size(0) / ranks;
  return t.narrow(0, rank * count, count);
}

struct Training {
  bool infers = false;            // evaluates under InferenceGuard before each step
  const char* freezes = nullptr;  // in step 1; trained again in step 2
};

// Three steps. Returns the hash of the parameters; those that are `frozen` have kept their bits.
template <class Run>
std::uint64_t train(Run& run, nn::Module& net, const std::vector<std::string>& frozen, const Training& how,
                    int rank = 0, int ranks = 1) {
  const auto loss = [&](const ls::Tensor& x, const ls::Tensor& y) { return nn::MSELoss()(net(x), y); };
  const ls::Tensor x = rows(kX, rank, ranks), y = rows(kY, rank, ranks);
  ls::StateDict before;
  run.gathered([&] { before = net.state_dict().clone(); });
  ls::optim::AdamW optimizer(run.parameters(), {.lr = 0.05, .weight_decay = 0.3});
  for (int step = 0; step < 3; ++step) {
    if (how.freezes && step == 1) net.freeze(how.freezes);
    if (how.freezes && step == 2) net.unfreeze(how.freezes);
    if (how.infers) {
      const ls::InferenceGuard guard;
      run.evaluate(x, y, loss);
      run.gathered([&] { net(x); });
    }
    optimizer.zero_grad();
    run.backward(x, y, loss);
    run.clip_grad_norm_(0.5);
    optimizer.step();
  }
  std::uint64_t hash = 0;
  run.gathered([&] {
    hash = nn::parameter_hash(net);
    const ls::StateDict after = net.state_dict();
    for (const std::string& name : frozen) {
      const bool was_unfrozen = how.freezes && name.starts_with(how.freezes);
      CHECK_MESSAGE((was_unfrozen || same_bits(after.at(name), before.at(name))), name);
    }
    CHECK(frozen.size() < before.size());
  });
  return hash;
}

std::uint64_t alone(const Change& by, const Training& how, int micro_batches) {
  Net net;
  change(net, by);
  const std::vector<std::string> frozen = frozen_in(net);
  par::GradientAccumulation run(net, {.micro_batches = micro_batches});
  return train(run, net, frozen, how);
}

// Trains in every mode, and on 1, 2, 3 and 6 ranks.
void check_modes(const Change& by, const Training& how) {
  INFO(by.what);
  {
    const std::uint64_t want = alone(by, {.freezes = how.freezes}, kMicroBatches);
    CHECK(alone(by, how, kMicroBatches) == want);
    Net net;
    change(net, by);
    std::vector<ls::Device> devices;
    for (int i = 0; i < kMicroBatches; ++i) devices.emplace_back(ls::DeviceType::kCpu, i);
    const std::vector<std::string> frozen = frozen_in(net);
    par::DataParallel run(net, devices);
    CHECK(train(run, net, frozen, how) == want);
  }
  for (const Ranks& of : kRanks) {
    const int ranks = of.count, each = of.micro_batches / ranks;
    CAPTURE(ranks);
    const std::uint64_t want = alone(by, {.freezes = how.freezes}, of.micro_batches);
    with_threads("local", ranks, [&](const Group& group) {
      {
        Net net;
        change(net, by);
        const std::vector<std::string> frozen = frozen_in(net);
        par::DistributedDataParallel run(net, group, {.micro_batches_per_rank = each});
        CHECK(train(run, net, frozen, how, group->rank(), ranks) == want);
      }
      for (int stage = 1; stage <= 3 && !how.freezes; ++stage) {
        CAPTURE(stage);
        Net net;
        change(net, by);
        const std::vector<std::string> frozen = frozen_in(net);
        par::ShardedDataParallel run(net, group, {.stage = stage, .micro_batches_per_rank = each});
        CHECK(train(run, net, frozen, how, group->rank(), ranks) == want);
        CHECK(contains(error_of([&] { net.freeze("norm"); }), "is distributed over ranks"));
        CHECK(contains(error_of([&] { net.replace("norm", nn::Identity()); }), "holds"));
      }
    });
  }
}

}  // namespace

TEST_CASE("replaced modules and frozen parameters in every training mode have the bits of one process") {
  for (const Change& by : kChanges) check_modes(by, {});
}

TEST_CASE("parameters that are frozen by pattern between steps, in the modes that allow it") {
  for (const Change& by : kChanges) check_modes(by, {.freezes = "norm"});
}

TEST_CASE("evaluation under InferenceGuard between the steps changes no bits, in every training mode") {
  for (const Change& by : {kChanges[0], kChanges[1]}) check_modes(by, {.infers = true});
}

namespace {

// A chain of modules, of which a pipeline makes stages, and tensor parallelism cuts the linear layers.
struct Chain : nn::Module {
  nn::Linear& up = add<nn::Linear>("up", 4, 8);
  nn::ReLU& act = add<nn::ReLU>("act");
  nn::Linear& down = add<nn::Linear>("down", 8, 6);
  nn::Linear& head = add<nn::Linear>("head", 6, 2);
  explicit Chain(bool replaces) {
    if (replaces) {
      replace("up", nn::Linear(4, 8));
      replace("act", nn::ReLU());
      replace("head", nn::Linear(6, 2));
    }
    const ls::NoGradGuard no_grad;
    std::uint32_t salt = 0;
    for (const nn::Parameter& p : parameters()) p->copy_(numbers(p->shape(), {}, ++salt));
    freeze("*.bias");
  }
  ls::Tensor forward(const ls::Tensor& x) const override { return head(down(act(up(x)))); }
};

}  // namespace

TEST_CASE("tensor parallelism cuts the module that replaced another, and the old reference follows") {
  std::vector<std::uint64_t> hashes;
  for (const bool replaces : {false, true}) {
    for (const int ranks : {1, 2}) {
      with_threads("local", ranks, [&](const Group& group) {
        Chain net(replaces);
        const par::DeviceMesh mesh(group, {{"tp", -1}});
        par::parallelize(
            net, mesh["tp"],
            {.tensor_slices = 2, .plan = {{"up", par::ColwiseParallel{}}, {"down", par::RowwiseParallel{}}}});
        CHECK_FALSE(net.up.weight->defined());
        CHECK(contains(error_of([&] { net.replace("up", nn::Linear(4, 8)); }), "a parallel call holds"));
        CHECK(net.freeze("up.bias") == 2 / ranks);
        par::GradientAccumulation run(net, {.micro_batches = kMicroBatches});
        const std::uint64_t hash = train(run, net, {"up.bias", "down.bias", "head.bias"}, {});
        run.gathered([&] { CHECK(same_bits(net.up.weight, net.state_dict().at("up.weight"))); });
        CHECK_FALSE(net.up.weight->defined());
        if (group->rank() == 0) hashes.push_back(hash);
      });
    }
  }
  CHECK(hashes == std::vector<std::uint64_t>(4, hashes[0]));
}

TEST_CASE("stages of a pipeline have the modules that replaced others, with evaluation under InferenceGuard") {
  Chain net(true);
  par::GradientAccumulation alone(net, {.micro_batches = kMicroBatches});
  const std::vector<std::string> frozen = frozen_in(net);
  const std::uint64_t want = train(alone, net, frozen, {});
  for (const int ranks : {1, 2, 3}) {
    for (const par::Schedule schedule : {par::Schedule::k1F1B, par::Schedule::kZeroBubble}) {
      with_threads("local", ranks, [&](const Group& group) {
        Chain staged(true);
        const par::DeviceMesh mesh(group, {{"pp", -1}});
        par::Pipeline run(
            staged, mesh["pp"],
            {.chain = {"up", "act", "down", "head"}, .schedule = schedule, .micro_batches_per_rank = kMicroBatches});
        CHECK(train(run, staged, frozen, {.infers = ranks > 1}) == want);
        CHECK(contains(error_of([&] { staged.replace("up", nn::Linear(4, 8)); }), "a parallel call holds"));
      });
    }
  }
}
