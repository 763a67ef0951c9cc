// CUDA graphs: a replay gives the results of the captured step.
#include "tests/cuda/host_accelerator.h"
#include "tests/support/testing.h"

namespace {

namespace nn = ls::nn;
namespace optim = ls::optim;

struct Net : nn::Module {
  nn::LayerNorm& norm = add<nn::LayerNorm>("norm", ls::Shape{12});
  nn::Linear& hidden = add<nn::Linear>("hidden", 12, 300);
  nn::Dropout& dropout = add<nn::Dropout>("dropout", 0.25);
  nn::Linear& out = add<nn::Linear>("out", 300, 4);
  ls::Tensor forward(const ls::Tensor& x) const override { return out(dropout(ls::gelu(hidden(norm(x))))); }
};

constexpr int kSteps = 22;

// The result of a training run.
struct Trained {
  std::vector<float> losses;
  ls::StateDict model, optimizer;
  std::vector<std::uint64_t> random;
};

enum class How {
  kSteps,       // run by the host
  kStepsTwice,  // run by the host, the first step twice
  kGraph,       // captured at the first batch, with a warm-up
  kGraphLater,  // captured at the second batch, without a warm-up
};

template <class Optimizer, class Options>
Trained train(const Options& options, How how) {
  const ls::Device device("cuda:0");
  ls::manual_seed(3);
  Net net;
  net.to(device);
  Optimizer optimizer(net.parameters(), options);
  optim::StepLR scheduler(optimizer, {.step_size = 5, .gamma = 0.5});
  const ls::Tensor x = ls::zeros({32, 12}, {.device = device});
  const ls::Tensor y = ls::zeros({32}, {.dtype = ls::kInt64, .device = device});
  ls::Tensor loss;
  const auto step = [&] {
    optimizer.zero_grad();
    loss = nn::cross_entropy(net(x), y);
    loss.backward();
    optimizer.step();
  };
  Trained out;
  ls::CudaGraph graph(device);
  for (std::uint32_t batch = 0; batch < kSteps; ++batch) {
    x.copy_(numbers({32, 12}, {}, batch + 1));
    y.copy_((ls::abs(numbers({32}, {}, batch + 90)) * 4).to(ls::kInt64));
    if (how == How::kSteps || how == How::kStepsTwice || (how == How::kGraphLater && batch == 0)) {
      step();
      if (how == How::kStepsTwice && batch == 0) step();
    } else if (batch == 0 || (how == How::kGraphLater && batch == 1)) {
      graph.capture(step, {.warm_up = how == How::kGraph});
    } else {
      graph.replay();
    }
    out.losses.push_back(loss.item<float>());
    scheduler.step();
  }
  out.random = ls::random::state();
  for (const auto& [name, value] : net.state_dict()) out.model.insert(name, value.to("cpu"));
  for (const auto& [name, value] : optimizer.state_dict()) out.optimizer.insert(name, value.to("cpu"));
  return out;
}

bool same(const ls::StateDict& a, const ls::StateDict& b) {
  bool all = a.size() == b.size();
  for (const auto& [name, value] : a) all = all && b.contains(name) && same_bits(value, b.at(name));
  return all;
}

template <class Optimizer, class Options>
void check_replays(const std::string& what, const Options& options) {
  INFO(what);
  const TestDevices devices;
  for (const auto& [eagerly, by_graph] :
       {std::pair(How::kStepsTwice, How::kGraph), std::pair(How::kSteps, How::kGraphLater)}) {
    const Trained eager = train<Optimizer>(options, eagerly), replayed = train<Optimizer>(options, by_graph);
    CHECK(eager.losses == replayed.losses);
    CHECK(same(eager.model, replayed.model));
    CHECK(same(eager.optimizer, replayed.optimizer));
    CHECK(eager.random == replayed.random);
  }
}

std::string error_in_capture(void (*step)(const ls::Tensor& x)) {
  const TestDevices devices;
  const ls::Tensor x = ls::ones({5}, {.device = "cuda:0"});
  int calls = 0;
  ls::CudaGraph graph;
  const std::string error = error_of([&] {
    graph.capture([&] {
      if (++calls == 2) step(x);  // the first call is the warm-up, which may wait
    });
  });
  CHECK(calls == 2);
  CHECK(ls::sum(x).item<float>() == 5);  // the device still works
  CHECK(contains(error_of([&] { graph.replay(); }), "nothing was captured"));
  return error;
}

}  // namespace

TEST_CASE("replays train as steps do: parameters, state, learning rates, dropout, losses, bit for bit") {
  check_replays<optim::SGD>("sgd", optim::SGDOptions{.lr = 0.1});
  check_replays<optim::SGD>("momentum",
                            optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.1, .weight_decay = 0.01});
  check_replays<optim::Adam>("adam", optim::AdamOptions{.lr = 0.01, .weight_decay = 0.01});
  check_replays<optim::AdamW>("adamw", optim::AdamWOptions{.lr = 0.01});
  check_replays<optim::RMSprop>("rmsprop", optim::RMSpropOptions{.momentum = 0.9});
  check_replays<optim::Adagrad>("adagrad", optim::AdagradOptions{.lr_decay = 0.1});
  check_replays<optim::Lion>("lion", optim::LionOptions{.lr = 0.01});
}

// As in the samples: the host runs the first step, smaller batches and evaluations come in between, and batches are
// freed at once.
TEST_CASE("replays between other work train as steps do") {
  const TestDevices devices;
  const auto train = [](bool by_graph) {
    const ls::Device device("cuda:0");
    ls::manual_seed(3);
    nn::Linear model(30, 1);
    model.to(device);
    optim::SGD optimizer(model.parameters(), {.lr = 0.1});
    nn::BCELoss criterion;
    const ls::Tensor kept_x = ls::empty({40, 30}, {.device = device}), kept_y = ls::empty({40, 1}, {.device = device});
    ls::Tensor recorded;
    const auto step = [&](const ls::Tensor& x, const ls::Tensor& y) {
      optimizer.zero_grad();
      ls::Tensor loss = criterion(ls::sigmoid(model(x.to(device))), y.to(device));
      loss.backward();
      optimizer.step();
      return loss;
    };
    ls::CudaGraph graph(device);
    std::vector<float> losses;
    for (std::uint32_t batch = 0; batch < 12; ++batch) {
      const std::int64_t rows = batch % 4 == 3 ? 7 : 40;
      const ls::Tensor x = numbers({rows, 30}, {}, batch + 1),
                       y = (numbers({rows, 1}, {}, batch + 50) > 0).to(ls::kFloat32);
      ls::Tensor loss;
      if (!by_graph || batch == 0 || rows != 40) {
        loss = step(x, y);
      } else {
        kept_x.copy_(x);
        kept_y.copy_(y);
        if (batch == 1)
          graph.capture([&] { recorded = step(kept_x, kept_y); }, {.warm_up = false});
        else
          graph.replay();
        loss = recorded;
      }
      losses.push_back(loss.item<float>());
      const ls::NoGradGuard no_grad;
      losses.push_back(criterion(ls::sigmoid(model(x.to(device))), y.to(device)).item<float>());
    }
    return losses;
  };
  const std::vector<float> have = train(true), want = train(false);
  REQUIRE(have.size() == want.size());
  for (std::size_t i = 0; i < want.size(); ++i) CHECK(have[i] == want[i]);
}

TEST_CASE("random numbers of every kind continue from replay to replay") {
  const TestDevices devices;
  const ls::Device device("cuda:0");
  const auto draw = [&](bool as_graph) {
    ls::manual_seed(11);
    std::vector<ls::Tensor> out;
    ls::Tensor u, n;
    const auto step = [&] {
      u = ls::rand({999}, {.dtype = ls::kFloat64, .device = device});
      n = ls::randn({1001}, {.device = device});
    };
    ls::CudaGraph graph;
    for (int i = 0; i < 4; ++i) {
      if (!as_graph) step();
      if (!as_graph && i == 0) step();
      if (as_graph) i == 0 ? graph.capture(step) : graph.replay();
      out.push_back(u.to("cpu"));
      out.push_back(n.to("cpu"));
    }
    return out;
  };
  const auto eager = draw(false), replayed = draw(true);
  for (std::size_t i = 0; i < eager.size(); ++i) CHECK(same_bits(eager[i], replayed[i]));
}

TEST_CASE("an operation that waits for the device is refused during a capture, by its name") {
  CHECK(contains(error_in_capture([](const ls::Tensor& x) { (void)ls::sum(x).item<float>(); }),
                 "item: waits for cuda:0"));
  CHECK(contains(error_in_capture([](const ls::Tensor& x) { (void)x.to("cpu"); }), "to: waits for cuda:0"));
  CHECK(contains(error_in_capture([](const ls::Tensor&) { (void)ls::tensor({1.0F}).to("cuda:0"); }), "to: waits"));
  CHECK(contains(error_in_capture([](const ls::Tensor& x) { x.copy_(ls::ones({5})); }), "copy"));
  CHECK(contains(error_in_capture([](const ls::Tensor& x) { (void)ls::sort(x, 0); }), "sort: waits"));
  CHECK(contains(error_in_capture([](const ls::Tensor&) {
                   ls::CudaGraph inner;
                   inner.capture([] {});
                 }),
                 "capture inside another"));
}

TEST_CASE("a graph needs a cuda device and a capture") {
  CHECK(contains(error_of([] { ls::CudaGraph graph("cpu"); }), "cpu is not a cuda device"));
}

TEST_CASE("memory of a graph: older tensors are freed after the capture, tensors of the capture outlive it") {
  const TestDevices devices;
  const ls::Device device("cuda:0");
  const std::int64_t before = ls::allocator_stats(device).allocated_bytes;
  ls::Tensor result;
  {
    const ls::Tensor x = ls::ones({3000}, {.device = device});
    ls::CudaGraph graph(device);
    graph.capture([&] {
      const ls::Tensor twice = x * 2.0;
      result = twice + 1.0;  // frees the old result: the warm-up's, once the capture has ended
    });
    CHECK(graph.memory_bytes() >= 24000);
    CHECK(result.to("cpu").span<float>()[0] == 3);
    CHECK(ls::allocator_stats(device).allocated_bytes == before + 12000);
    x.copy_(ls::full({3000}, 4.0F));
    graph.replay();
    CHECK(result.to("cpu").span<float>()[0] == 9);
  }
  CHECK(result.to("cpu").span<float>()[2999] == 9);
  result = {};
  CHECK(ls::allocator_stats(device).allocated_bytes == before);
}

TEST_CASE("memory of a graph grows where no warm-up has measured how much is needed") {
  const TestDevices devices;
  const ls::Tensor x = ls::ones({1 << 20}, {.device = "cuda:0"});
  std::vector<ls::Tensor> sums;
  const auto step = [&] {
    sums.clear();
    for (int i = 0; i < 6; ++i) sums.push_back(x + static_cast<double>(i));
  };
  step();
  ls::CudaGraph graph;
  graph.capture(step, {.warm_up = false});
  CHECK(graph.memory_bytes() >= 6 * (4 << 20));
  x.copy_(ls::full({1 << 20}, 2.0F));
  graph.replay();
  for (std::size_t i = 0; i < sums.size(); ++i) CHECK(sums[i].to("cpu").span<float>()[7] == 2 + static_cast<float>(i));
}

TEST_CASE("an optimizer's state is not created in a capture, because every replay would create it again") {
  const TestDevices devices;
  const ls::Device device("cuda:0");
  Net net;
  net.to(device);
  optim::SGD optimizer(net.parameters(), {.momentum = 0.9});
  const ls::Tensor x = ls::ones({2, 12}, {.device = device});
  ls::CudaGraph graph;
  const std::string error = error_of([&] {
    graph.capture(
        [&] {
          optimizer.zero_grad();
          ls::sum(net(x)).backward();
          optimizer.step();
        },
        {.warm_up = false});
  });
  CHECK(contains(error, "call step() once before"));
}

TEST_CASE("a capture that drops the last tensor of an older graph frees that graph's memory afterwards") {
  const TestDevices devices;
  const ls::Tensor x = ls::ones({8}, {.device = "cuda:0"});
  ls::Tensor sum;
  const auto step = [&] { sum = ls::sum(x); };
  step();
  ls::CudaGraph graph;
  for (int i = 0; i < 2; ++i) graph.capture(step, {.warm_up = false});  // only `sum` holds the first graph's memory
  x.fill_(3);
  graph.replay();
  CHECK(sum.item<float>() == 24);
}
