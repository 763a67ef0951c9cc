// Models on cuda devices compared with the CPU: whole training runs.
#include "tests/cuda/host_accelerator.h"
#include "tests/support/testing.h"

namespace {

namespace nn = ls::nn;
namespace optim = ls::optim;

struct Net : nn::Module {
  nn::Embedding& words = add<nn::Embedding>("words", 11, 6);
  nn::LayerNorm& norm = add<nn::LayerNorm>("norm", ls::Shape{6});
  nn::Linear& hidden = add<nn::Linear>("hidden", 6, 48);
  nn::Dropout& dropout = add<nn::Dropout>("dropout", 0.25);
  nn::Linear& out = add<nn::Linear>("out", 48, 4);
  ls::Tensor forward(const ls::Tensor& x) const override { return out(dropout(ls::gelu(hidden(norm(words(x)))))); }
};

struct PictureNet : nn::Module {
  nn::Conv2d& conv = add<nn::Conv2d>("conv", 1, 4, 3, nn::Conv2dOptions{.padding = 1});
  nn::BatchNorm2d& norm = add<nn::BatchNorm2d>("norm", 4);
  nn::Linear& out = add<nn::Linear>("out", 4 * 3 * 3, 4);
  ls::Tensor forward(const ls::Tensor& x) const override {
    return out(ls::max_pool2d(ls::relu(norm(conv(x))), 2).flatten(1));
  }
};

// Parameters and buffers after five steps.
std::vector<ls::Tensor> train_on_pictures(const ls::Device& device) {
  ls::manual_seed(4);
  PictureNet net;
  net.to(device);
  optim::SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = 0.9});
  for (std::uint32_t step = 0; step < 5; ++step) {
    const ls::Tensor x = numbers({8, 1, 6, 6}, {}, step).to(device), y = ls::randint(0, 4, {8}).to(device);
    optimizer.zero_grad();
    nn::cross_entropy(net(x), y).backward();
    optimizer.step();
  }
  std::vector<ls::Tensor> out;
  for (const auto& [name, tensor] : net.state_dict()) out.push_back(tensor.to("cpu"));
  return out;
}

template <class Optimizer, class Options>
std::vector<ls::Tensor> train(const ls::Device& device, const Options& options) {
  ls::manual_seed(3);
  Net net;
  net.to(device);
  Optimizer optimizer(net.parameters(), options);
  for (int step = 0; step < 10; ++step) {
    const ls::Tensor x = ls::randint(0, 11, {32}).to(device), y = ls::randint(0, 4, {32}).to(device);
    optimizer.zero_grad();
    nn::cross_entropy(net(x), y).backward();
    optimizer.step();
  }
  std::vector<ls::Tensor> out;
  for (const nn::Parameter& parameter : net.parameters()) out.push_back(parameter.tensor().detach().to("cpu"));
  return out;
}

template <class Optimizer, class Options>
void check_training(const std::string& what, const Options& options) {
  const TestDevices devices;
  const auto here = train<Optimizer>("cpu", options), there = train<Optimizer>("cuda:0", options);
  for (std::size_t i = 0; i < here.size(); ++i) check_close(there[i], here[i], what, {1e-4, 1e-5});
}

}  // namespace

TEST_CASE("ten steps with each optimizer") {
  check_training<optim::SGD>("sgd", optim::SGDOptions{.lr = 0.1});
  check_training<optim::SGD>("momentum",
                             optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true});
  check_training<optim::Adam>("adam", optim::AdamOptions{.lr = 0.01, .weight_decay = 0.01});
  check_training<optim::AdamW>("adamw", optim::AdamWOptions{.lr = 0.01});
}

TEST_CASE("five steps with convolution and batch normalisation, running statistics included") {
  const TestDevices devices;
  const auto here = train_on_pictures("cpu"), there = train_on_pictures("cuda:0");
  REQUIRE(here.size() == 9);
  for (std::size_t i = 0; i < here.size(); ++i)
    check_close(there[i], here[i], "state " + std::to_string(i), {1e-4, 1e-5});
}

TEST_CASE("memory is recorded, and all of it freed") {
  const TestDevices devices;
  const ls::Device device("cuda:0");
  const std::int64_t before = ls::allocator_stats(device).allocated_bytes;
  {
    const ls::Tensor x = ls::zeros({1000}, {.device = device});
    CHECK(ls::allocator_stats(device).allocated_bytes == before + 4000);
  }
  (void)train<optim::AdamW>(device, optim::AdamWOptions{});
  CHECK(ls::allocator_stats(device).allocated_bytes == before);
}

TEST_CASE("a device past the last one is refused with the number of devices") {
  const TestDevices devices;
  const int count = devices.count();
  const std::string last = "cuda:" + std::to_string(count);
  CHECK(contains(error_of<ls::DeviceError>([&] { (void)ls::zeros({1}, {.device = last}); }), last));
}

#if LOCKSTEP_HAVE_CUDA_MODULE
TEST_CASE("the module opens, even on a machine without a GPU or a driver") {
  if (ls::device_count(ls::DeviceType::kCuda) > 0) return;
  CHECK(contains(error_of<ls::DeviceError>([] { (void)ls::zeros({1}, {.device = "cuda:0"}); }), "no CUDA device"));
}
#endif

TEST_CASE("checkpoints can be loaded on another device") {
  const TestDevices devices;
  ls::manual_seed(1);
  Net net;
  net.to(ls::Device("cuda:0"));
  const ls::StateDict saved = net.state_dict();
  Net other;
  other.load_state_dict(saved);
  CHECK(same_bits(other.out.parameters()[0].tensor().detach(), net.out.parameters()[0].tensor().detach().to("cpu")));
}
