// Convolutions, training steps (zero_grad, forward, backward, SGD) of a small CNN and of ResNet-18, and its inference, in f32.
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

// A convolution of square images.
struct Layer {
  const char* row;
  std::int64_t batch, in, size, out, kernel = 3, stride = 1, padding = 1;
  bool backward = false;  // forward and backward, of x as well
};
constexpr Layer kLayers[] = {
    {"conv_32_14", 32, 32, 14, 32},
    {.row = "conv_32_14_backward", .batch = 32, .in = 32, .size = 14, .out = 32, .backward = true},
    {.row = "conv_16_14_backward", .batch = 32, .in = 16, .size = 14, .out = 32, .backward = true},
    {"conv_64_56", 8, 64, 56, 64},
    {.row = "conv_64_56_backward", .batch = 8, .in = 64, .size = 56, .out = 64, .backward = true},
    {"conv_1_28", 32, 1, 28, 16},
    {"conv_128_28", 8, 128, 28, 128},
    {"conv_256_14", 8, 256, 14, 256},
    {"conv_512_7", 8, 512, 7, 512},
    {"conv_3_224", 8, 3, 224, 64, 7, 2, 3},
    {"conv_64_56_kernel_1", 8, 64, 56, 256, 1, 1, 0},
    {"conv_64_56_stride_2", 8, 64, 56, 128, 3, 2, 1},
};

void measure_layer(const Layer& layer) {
  nn::Conv2d convolution(layer.in, layer.out, layer.kernel, {.stride = layer.stride, .padding = layer.padding});
  const ls::Tensor x = ls::randn({layer.batch, layer.in, layer.size, layer.size});
  if (!layer.backward) {
    const ls::NoGradGuard no_grad;
    return bench::measure(layer.row, [&] { ls::Tensor y = convolution(x); });
  }
  x.requires_grad_();
  const ls::Tensor grad = ls::randn(convolution(x).shape());
  bench::measure(layer.row, [&] {
    convolution(x).backward(grad);
    x.set_grad({});
    convolution.zero_grad();
  });
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
  for (const Layer& layer : kLayers) measure_layer(layer);
  measure_step<Cnn>("cnn_step", ls::randn({32, 1, 28, 28}), 10);
  measure_step<ResNet18>("resnet18_step", ls::randn({8, 3, 96, 96}), 100);
  measure_step<ResNet18>("resnet18_step_224", ls::randn({4, 3, 224, 224}), 100);

  ResNet18 model;
  model.eval();
  const ls::NoGradGuard no_grad;
  const ls::Tensor x = ls::randn({1, 3, 224, 224});
  bench::measure(
      "resnet18_inference", [&] { ls::Tensor logits = model(x); }, 2.0);
}
