// A multi-layer perceptron on Fashion-MNIST: which of ten kinds of clothing is on a picture of 28 x 28 pixels?
#include <lockstep/lockstep.h>

#include <cstdint>

#include "support/fashion_mnist.h"
#include "support/graph_step.h"
#include "support/program.h"
#include "support/run.h"

namespace ls = lockstep;
using samples::fashion_mnist::evaluate, samples::fashion_mnist::open;

struct Mlp : ls::nn::Module {
  ls::nn::Sequential& body =
      add<ls::nn::Sequential>("body", ls::nn::Flatten(), ls::nn::Linear(784, 512), ls::nn::ReLU(),
                              ls::nn::Linear(512, 256), ls::nn::ReLU(), ls::nn::Linear(256, 10));
  ls::Tensor forward(const ls::Tensor& x) const override { return body(x); }  // (batch, 28, 28) -> (batch, 10)
};

int train(const samples::Options& options) {
  ls::manual_seed(static_cast<std::uint64_t>(options.seed));

  auto train_set = open(options.data, "train");
  auto test_set = open(options.data, "t10k");
  ls::data::DataLoader train_in_order(train_set, {.batch_size = 1000});
  ls::data::DataLoader test_loader(test_set, {.batch_size = 1000});

  Mlp model;
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
  return run.finish(
      evaluate(model, criterion, train_in_order), evaluate(model, criterion, test_loader),
      "the same with --epochs 20 (train and test part ways), --lr 0.01 (too fast), --batch 512 (fewer steps)");
}

int main(int argc, char** argv) {
  return samples::run_program(argc, argv,
                              {.program = "fashion_mnist_mlp",
                               .about = "Trains a 784-512-256-10 perceptron on Fashion-MNIST",
                               .data = "/usr/share/datasets/fashion-mnist",
                               .data_flag = "--data",
                               .data_help = "folder with the four IDX files",
                               .epochs = 5,
                               .batch = 128,
                               .lr = 0.001},
                              train);
}
