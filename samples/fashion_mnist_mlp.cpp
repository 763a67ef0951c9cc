// A multi-layer perceptron on Fashion-MNIST: which of ten kinds of clothing does an image of 28 x 28 pixels show?
#include <lockstep/lockstep.h>

#include <cstdint>

#include "support/fashion_mnist.h"
#include "support/program.h"

namespace ls = lockstep;

struct Mlp : ls::nn::Module {
  ls::nn::Sequential& body =
      add<ls::nn::Sequential>("body", ls::nn::Flatten(), ls::nn::Linear(784, 512), ls::nn::ReLU(),
                              ls::nn::Linear(512, 256), ls::nn::ReLU(), ls::nn::Linear(256, 10));
  ls::Tensor forward(const ls::Tensor& x) const override { return body(x); }  // (batch, 28, 28) -> (batch, 10)
};

int train(const samples::Options& options) {
  ls::manual_seed(static_cast<std::uint64_t>(options.seed));
  Mlp model;
  return samples::fashion_mnist::train(
      options, model,
      "the same with --epochs 20 (train and test diverge), --lr 0.01 (too fast), --batch 512 (fewer steps)");
}

int main(int argc, char** argv) {
  return samples::run_program(argc, argv,
                              {.program = "fashion_mnist_mlp",
                               .about = "Trains a 784-512-256-10 perceptron on Fashion-MNIST",
                               .data = "/usr/share/datasets/fashion-mnist",
                               .data_flag = "--data",
                               .data_help = "folder with the four IDX files",
                               .units = {"body.*"},
                               .epochs = 5,
                               .batch = 128,
                               .lr = 0.001},
                              train);
}
