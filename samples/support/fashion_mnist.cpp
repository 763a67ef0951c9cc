#include "support/fashion_mnist.h"

#include <cstdint>
#include <filesystem>
#include <memory>

#include "support/evaluate.h"
#include "support/graph_step.h"

namespace samples::fashion_mnist {

namespace {

// Opens part `name`, "train" or "t10k", of the data set in `folder`: standardised images (28, 28), and labels.
std::shared_ptr<ls::data::IdxDataset> open(const std::string& folder, const std::string& name) {
  const auto images = std::filesystem::path(folder) / (name + "-images-idx3-ubyte.gz");
  const auto labels = std::filesystem::path(folder) / (name + "-labels-idx1-ubyte.gz");
  if (!std::filesystem::exists(images)) {
    throw ls::IoError(images.string() + " does not exist; on Debian and Ubuntu: apt-get install " +
                      "dataset-fashion-mnist\nFor files of the same names in another folder, use --data FOLDER");
  }
  // Mean and standard deviation of the training pixels: inputs around 0 train faster.
  return std::make_shared<ls::data::IdxDataset>(images.string(), labels.string(),
                                                ls::data::IdxOptions{.mean = 0.286, .std = 0.353});
}

}  // namespace

int train(const Options& options, ls::nn::Module& model, const std::string& try_next) {
  auto train_set = open(options.data, "train");
  auto test_set = open(options.data, "t10k");
  ls::data::DataLoader train_in_order(train_set, {.batch_size = 1000});
  ls::data::DataLoader test_loader(test_set, {.batch_size = 1000});

  ls::nn::CrossEntropyLoss criterion;
  Step step(options, model);  // on one device, or as --strategy says
  ls::optim::AdamW optimizer(step.parameters(), {.lr = options.lr});
  ls::data::DataLoader loader = step.loader(train_set);
  // The learning rate falls along a cosine: large steps first, small steps at the end.
  ls::optim::CosineAnnealingLR schedule(optimizer, {.t_max = options.epochs * loader.size()});

  GraphStep graph_step(options, step.device());
  Run run(options, step, {.model = &model, .optimizer = &optimizer, .scheduler = &schedule}, loader.size());
  const auto evaluate_on = [&](ls::data::DataLoader<>& set) {
    return step.gathered([&] { return evaluate(model, criterion, set); });
  };
  for (std::int64_t epoch = run.first_epoch(); epoch <= options.epochs; ++epoch) {
    loader.set_epoch(epoch);             // the order of the examples depends only on seed and epoch
    loader.skip(run.batches_done());     // a resumed run has already trained on some batches
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
    run.epoch_done(evaluate_on(test_loader));
  }
  return run.finish(evaluate_on(train_in_order), evaluate_on(test_loader), try_next);
}

}  // namespace samples::fashion_mnist
