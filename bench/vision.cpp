// Convolutions, and training steps of a small CNN and of ResNet-18, in f32: zero_grad, forward, backward, SGD.
#include <lockstep/lockstep.h>

#include <cstdint>
#include <string>

#include "support/timing.h"

namespace ls = lockstep;
namespace nn = lockstep::nn;

namespace {

// 1 x 28 x 28 pixels, ten classes.
struct Cnn : nn::Module {
  nn::Sequential& body = add<nn::Sequential>("body", nn::Conv2d(1, 16, 3, {.padding = 1}), nn::ReLU(), nn::MaxPool2d(2),
                                             nn::Conv2d(16, 32, 3, {.padding = 1}), nn::ReLU(), nn::MaxPool2d(2),
                                             nn::Flatten(), nn::Linear(32 * 7 * 7, 10));
  ls::Tensor forward(const ls::Tensor& x) const override { return body(x); }
};

struct ResidualBlock : nn::Module {
  nn::Sequential& body;
  nn::Sequential& shortcut;  // empty: the identity
  ResidualBlock(std::int64_t in, std::int64_t out, std::int64_t stride)
      : body(add<nn::Sequential>("body", nn::Conv2d(in, out, 3, {.stride = stride, .padding = 1, .bias = false}),
                                 nn::BatchNorm2d(out), nn::ReLU(),
                                 nn::Conv2d(out, out, 3, {.padding = 1, .bias = false}), nn::BatchNorm2d(out))),
        shortcut(add<nn::Sequential>("shortcut")) {
    if (in == out) return;
    shortcut.push_back(nn::Conv2d(in, out, 1, {.stride = stride, .bias = false}));
    shortcut.push_back(nn::BatchNorm2d(out));
  }
  ls::Tensor forward(const ls::Tensor& x) const override { return ls::relu(body(x) + shortcut(x)); }
};

struct ResNet18 : nn::Module {
  nn::Sequential& stem =
      add<nn::Sequential>("stem", nn::Conv2d(3, 64, 7, {.stride = 2, .padding = 3, .bias = false}), nn::BatchNorm2d(64),
                          nn::ReLU(), nn::MaxPool2d(3, {.stride = 2, .padding = 1}));
  nn::Sequential& blocks = add<nn::Sequential>("blocks");
  nn::Linear& head = add<nn::Linear>("head", 512, 100);
  ResNet18() {
    std::int64_t in = 64;
    for (const std::int64_t out : {64, 128, 256, 512}) {
      blocks.push_back(ResidualBlock(in, out, in == out ? 1 : 2));
      blocks.push_back(ResidualBlock(out, out, 1));
      in = out;
    }
  }
  ls::Tensor forward(const ls::Tensor& x) const override { return head(blocks(stem(x)).mean({2, 3})); }
};

// A 3 x 3 convolution with padding 1 of square images, as many channels out as in.
struct Convolution {
  nn::Conv2d layer;
  ls::Tensor x;
  Convolution(std::int64_t batch, std::int64_t channels, std::int64_t size)
      : layer(channels, channels, 3, {.padding = 1}), x(ls::randn({batch, channels, size, size})) {}
};

void measure_forward(const std::string& name, const Convolution& convolution) {
  const ls::NoGradGuard no_grad;
  bench::measure(
      name, [&] { ls::Tensor y = convolution.layer(convolution.x); }, 2.0);
}

void measure_forward_and_backward(const std::string& name, Convolution convolution) {
  convolution.x.requires_grad_();
  const ls::Tensor grad = ls::randn(convolution.x.shape());
  const auto work = [&] {
    convolution.layer(convolution.x).backward(grad);
    convolution.x.set_grad({});
    convolution.layer.zero_grad();
  };
  bench::measure(name, work, 2.0);
}

template <class Model>
void measure_step(const std::string& name, const ls::Tensor& x, std::int64_t classes) {
  Model model;
  const nn::CrossEntropyLoss criterion;
  ls::optim::SGD optimizer(model.parameters(), {.lr = 0.01});
  const ls::Tensor y = ls::randint(0, classes, {x.size(0)});
  const auto step = [&] {
    optimizer.zero_grad();
    criterion(model(x), y).backward();
    optimizer.step();
  };
  bench::measure(name, step, 4.0);
}

}  // namespace

int main() {
  bench::start_a_thread_once();
  ls::set_num_threads(bench::threads());
  ls::manual_seed(0);
  measure_forward("conv_32_14", Convolution(32, 32, 14));
  measure_forward("conv_128_28", Convolution(8, 128, 28));
  measure_forward_and_backward("conv_64_56_backward", Convolution(8, 64, 56));
  measure_step<Cnn>("cnn_step", ls::randn({32, 1, 28, 28}), 10);
  measure_step<ResNet18>("resnet18_step", ls::randn({8, 3, 96, 96}), 100);
}
