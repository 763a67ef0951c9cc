// Models with replaced modules and frozen parameters in every training mode, and evaluation under InferenceGuard between
// the steps: all have the bits of one process.
#include "replace.h"
#include "tests/support/groups.h"

namespace par = ls::parallel;

namespace {

constexpr int kMicroBatches = 6;

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
  const char* freezes = nullptr;  // before step 1, until step 2
};

// Three steps. Returns the hash of the parameters; those that are frozen throughout have kept their bits.
template <class Run>
std::uint64_t train(Run& run, Net& net, const Training& how, int rank = 0, int ranks = 1) {
  const auto loss = [&](const ls::Tensor& x, const ls::Tensor& y) { return nn::MSELoss()(net(x), y); };
  const ls::Tensor x = rows(kX, rank, ranks), y = rows(kY, rank, ranks);
  std::vector<std::string> frozen;
  ls::StateDict before;
  run.gathered([&] {
    before = net.state_dict().clone();
    for (const auto& [name, parameter] : net.named_parameters())
      if (!parameter.master().requires_grad()) frozen.push_back(name);
  });
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
    for (const std::string& name : frozen) CHECK_MESSAGE(same_bits(after.at(name), before.at(name)), name);
    CHECK(frozen.size() < before.size());
  });
  return hash;
}

std::uint64_t alone(const Change& by, const Training& how) {
  Net net;
  change(net, by);
  par::GradientAccumulation run(net, {.micro_batches = kMicroBatches});
  return train(run, net, how);
}

// Trains in every mode, and on 1, 2, 3 and 6 ranks.
void check_modes(const Change& by, const Training& how) {
  INFO(by.what);
  const std::uint64_t want = alone(by, {.freezes = how.freezes});
  CHECK(alone(by, how) == want);
  {
    Net net;
    change(net, by);
    std::vector<ls::Device> devices;
    for (int i = 0; i < kMicroBatches; ++i) devices.emplace_back(ls::DeviceType::kCpu, i);
    par::DataParallel run(net, devices);
    CHECK(train(run, net, how) == want);
  }
  for (const int ranks : {1, 2, 3, 6}) {
    CAPTURE(ranks);
    with_threads("local", ranks, [&](const Group& group) {
      {
        Net net;
        change(net, by);
        par::DistributedDataParallel run(net, group, {.micro_batches_per_rank = kMicroBatches / ranks});
        CHECK(train(run, net, how, group->rank(), ranks) == want);
      }
      for (int stage = 1; stage <= 3 && !how.freezes; ++stage) {
        CAPTURE(stage);
        Net net;
        change(net, by);
        par::ShardedDataParallel run(net, group, {.stage = stage, .micro_batches_per_rank = kMicroBatches / ranks});
        CHECK(train(run, net, how, group->rank(), ranks) == want);
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
