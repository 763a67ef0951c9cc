// A convolutional network on Fashion-MNIST or MNIST, once with LibTorch and once with Lockstep: docs/from_libtorch.md.
#include <lockstep/lockstep.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

namespace torch = lockstep;  // the same names in both programs

struct Net : torch::nn::Module {
  torch::nn::Conv2d &conv1 = add<torch::nn::Conv2d>("conv1", 1, 10, 5),
                    &conv2 = add<torch::nn::Conv2d>("conv2", 10, 20, 5);
  torch::nn::Linear &fc1 = add<torch::nn::Linear>("fc1", 320, 50), &fc2 = add<torch::nn::Linear>("fc2", 50, 10);

  torch::Tensor forward(const torch::Tensor& images) const override {
    torch::Tensor x = torch::relu(torch::max_pool2d(conv1(images), 2));
    x = torch::relu(torch::max_pool2d(conv2(x), 2));
    x = torch::relu(fc1(x.flatten(1)));
    return fc2(x);
  }
};

// The same numbers in both programs, whose random numbers differ.
void initialize(Net& model) {
  torch::NoGradGuard no_grad;
  for (const torch::Tensor& parameter : model.parameters()) {
    const auto numel = static_cast<double>(parameter.numel()), outputs = static_cast<double>(parameter.size(0));
    const double bound = parameter.dim() > 1 ? 1 / std::sqrt(numel / outputs) : 0;  // as Conv2d's and Linear's own
    parameter.view(-1).copy_(torch::sin(torch::arange(numel)) * bound);
  }
}

template <class Loader>
void train(Net& model, torch::Device device, Loader& loader, torch::optim::Optimizer& optimizer, int epoch) {
  model.train();
  torch::nn::CrossEntropyLoss criterion;
  int step = 0;
  for (const auto& [input, target] : loader) {
    const torch::Tensor x = input.to(device), y = target.to(device);
    optimizer.zero_grad();
    const torch::Tensor loss = criterion(model.forward(x), y);
    loss.backward();
    optimizer.step();
    if (++step % 10 == 0) std::printf("epoch %d, step %d, loss %.6f\n", epoch, step, loss.item<double>());
  }
}

template <class Loader>
double accuracy(Net& model, torch::Device device, Loader& loader) {
  torch::NoGradGuard no_grad;
  model.eval();
  std::int64_t right = 0, rows = 0;
  for (const auto& [input, target] : loader) {
    const torch::Tensor x = input.to(device), y = target.to(device);
    right += (model.forward(x).argmax(1) == y).sum().item<std::int64_t>();
    rows += x.size(0);
  }
  return static_cast<double>(right) / static_cast<double>(rows);
}

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : ".";
  const int epochs = argc > 2 ? std::atoi(argv[2]) : 3;
  torch::manual_seed(0);
  const torch::Device device(argc > 3 ? argv[3] : "cpu");

  Net model;
  initialize(model);
  model.to(device);
  torch::optim::SGD optimizer(model.parameters(), {.lr = 0.01, .momentum = 0.5});

  auto train_set = torch::data::datasets::MNIST(folder)
                       .map(torch::data::transforms::Normalize<>(0.286, 0.353))
                       .map(torch::data::transforms::Stack<>());
  auto train_loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(std::move(train_set), 64);
  auto test_set = torch::data::datasets::MNIST(folder, torch::data::datasets::MNIST::Mode::kTest)
                      .map(torch::data::transforms::Normalize<>(0.286, 0.353))
                      .map(torch::data::transforms::Stack<>());
  auto test_loader = torch::data::make_data_loader(std::move(test_set), 1000);

  for (int epoch = 1; epoch <= epochs; ++epoch) {
    train(model, device, *train_loader, optimizer, epoch);
    std::printf("epoch %d, test accuracy %.4f\n", epoch, accuracy(model, device, *test_loader));
  }

  torch::save(model, "net.safetensors");
}
