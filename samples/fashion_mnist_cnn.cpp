// A small convolutional network on Fashion-MNIST: which of ten kinds of clothing is on a picture of 28 x 28 pixels?
#include <lockstep/lockstep.h>

#include <cstdint>

#include "support/fashion_mnist.h"
#include "support/graph_step.h"
#include "support/program.h"
#include "support/run.h"

namespace ls = lockstep;
using samples::fashion_mnist::evaluate, samples::fashion_mnist::open;

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

  auto train_set = open(options.data, "train");
  auto test_set = open(options.data, "t10k");
  ls::data::DataLoader train_in_order(train_set, {.batch_size = 1000});
  ls::data::DataLoader test_loader(test_set, {.batch_size = 1000});

  Cnn model;
  ls::nn::CrossEntropyLoss criterion;
  ls::optim::AdamW optimizer(model.parameters(), {.lr = options.lr});
  samples::Step step(options, model);  // on one device, or as --mode says
  ls::data::DataLoader loader = step.loader(train_set);
  // The rate falls along a cosine: large steps to get there, small ones to settle.
  ls::optim::CosineAnnealingLR schedule(optimizer, {.t_max = options.epochs * loader.size()});

  samples::GraphStep graph_step(options, step.device());
  samples::Run run(options, step, {.model = &model, .optimizer = &optimizer, .scheduler = &schedule}, loader.size());
  for (std::int64_t epoch = run.first_epoch(); epoch <= options.epochs; ++epoch) {
    loader.set_epoch(epoch);             // the order of the examples depends on seed and epoch alone
    loader.skip(run.batches_done());     // a run that goes on has trained some of them before
    for (const auto& [x, y] : loader) {  // (batch, 28, 28) and (batch)
      const ls::Tensor loss = graph_step(x, y, [&](const ls::Tensor& x, const ls::Tensor& y) {
        optimizer.zero_grad();
        ls::Tensor loss = step.backward(x, y, criterion);
        optimizer.step();
        return loss;
      });
      schedule.step();
      run.step_done(loss.item<double>(), step.rows(x));
      if (step.stop_requested()) return run.interrupted();
    }
    run.epoch_done(evaluate(model, criterion, test_loader));
  }
  return run.finish(evaluate(model, criterion, train_in_order), evaluate(model, criterion, test_loader),
                    "the same with --epochs 10 (better), --lr 0.03 (too fast), and fashion_mnist_mlp (a perceptron)");
}

int main(int argc, char** argv) {
  return samples::run_program(argc, argv,
                              {.program = "fashion_mnist_cnn",
                               .about = "Trains a network of two convolutions on Fashion-MNIST",
                               .data = "/usr/share/datasets/fashion-mnist",
                               .data_flag = "--data",
                               .data_help = "folder with the four IDX files",
                               .epochs = 3,
                               .batch = 128,
                               .lr = 0.001},
                              train);
}
