// A small convolutional network on Fashion-MNIST: which of ten kinds of clothing does an image of 28 x 28 pixels show?
#include <lockstep/lockstep.h>

#include <cstdint>

#include "support/fashion_mnist.h"
#include "support/program.h"

namespace ls = lockstep;

struct Cnn : ls::nn::Module {
  ls::nn::Sequential& body = add<ls::nn::Sequential>(
      "body",                                                                             // (batch, 1, 28, 28)
      ls::nn::Conv2d(1, 16, 3, {.padding = 1, .bias = false}), ls::nn::BatchNorm2d(16),   // the norm has a bias
      ls::nn::ReLU(), ls::nn::MaxPool2d(2),                                               // (batch, 16, 14, 14)
      ls::nn::Conv2d(16, 32, 3, {.padding = 1, .bias = false}), ls::nn::BatchNorm2d(32),  //
      ls::nn::ReLU(), ls::nn::MaxPool2d(2),                                               // (batch, 32, 7, 7)
      ls::nn::Flatten(), ls::nn::Linear(32 * 7 * 7, 10));
  ls::Tensor forward(const ls::Tensor& x) const override { return body(x.unsqueeze(1)); }  // (batch, 28, 28)
};

int train(const samples::Options& options) {
  ls::manual_seed(static_cast<std::uint64_t>(options.seed));
  Cnn model;
  return samples::fashion_mnist::train(
      options, model, "the same with --epochs 10 (better), --lr 0.03 (too fast), and fashion_mnist_mlp (a perceptron)");
}

int main(int argc, char** argv) {
  return samples::run_program(argc, argv,
                              {.program = "fashion_mnist_cnn",
                               .about = "Trains a network of two convolutions on Fashion-MNIST",
                               .data = "/usr/share/datasets/fashion-mnist",
                               .data_flag = "--data",
                               .data_help = "folder with the four IDX files",
                               .units = {"body.*"},
                               .epochs = 3,
                               .batch = 128,
                               .lr = 0.001},
                              train);
}
