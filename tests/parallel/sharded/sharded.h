// Models and training runs for the tests of ShardedDataParallel.
#pragma once

#include <optional>

#include "tests/support/groups.h"

namespace sharded_test {

// A block with odd sizes, a frozen parameter and one of a single element.
struct Block : ls::nn::Module {
  ls::nn::LayerNorm& norm = add<ls::nn::LayerNorm>("norm", ls::Shape{7});
  ls::nn::Linear& up = add<ls::nn::Linear>("up", 7, 13);
  ls::nn::Dropout& dropout = add<ls::nn::Dropout>("dropout", 0.2);
  ls::nn::Linear& down = add<ls::nn::Linear>("down", 13, 7);
  ls::nn::Parameter& gain = add_parameter("gain", ls::ones({1}));
  ls::nn::Parameter& fixed = add_parameter("fixed", ls::full({5}, 0.5));
  Block() { fixed->requires_grad_(false); }
  ls::Tensor forward(const ls::Tensor& x) const override {
    return x + down(dropout(ls::gelu(up(norm(x))))) * *gain * ls::sum(*fixed);
  }
};

// Blocks, of which one is used twice, one by some micro-batches only and one never; a tied weight; batch norm.
struct Model : ls::nn::Module {
  ls::nn::Embedding& embedding = add("embedding", ls::nn::Embedding(11, 7));
  ls::nn::ModuleList& blocks = add<ls::nn::ModuleList>("blocks");
  ls::nn::Linear& head = add<ls::nn::Linear>("head", 7, 11);
  ls::nn::Buffer& mean = add_buffer("mean", ls::zeros({7}));
  Model() {
    for (int i = 0; i < 5; ++i) blocks.push_back(Block());
  }
  // tokens: (batch) i64 -> scores (batch, 11)
  ls::Tensor forward(const ls::Tensor& tokens) const override {
    ls::Tensor x = embedding(tokens);
    {
      const ls::NoGradGuard no_grad;
      mean->mul_(0.9);
      mean->add_(ls::mean(x.detach(), {0}), 0.1);
    }
    x = blocks[0](x);
    x = blocks[1](x);
    if (tokens.select(0, 0).item<std::int64_t>() % 3 == 0) x = blocks[2](x);
    x = blocks[1](x);  // the second time
    x = blocks[4](x);  // block 3 is never used
    return ls::linear(x, embedding.weight, ls::Tensor()) + head(x);
  }
};

struct Result {
  std::uint64_t hash = 0;
  std::vector<double> losses;
  std::vector<double> norms;
  std::int64_t copied = 0;  // bytes between device and host in the last step
};

constexpr std::int64_t kRows = 203;

inline std::shared_ptr<ls::data::TensorDataset> make_dataset() {
  return std::make_shared<ls::data::TensorDataset>(ls::randint(0, 11, {kRows}), ls::randint(0, 11, {kRows}));
}

// Trains for some steps of `micro_batches` micro-batches, of which this run has [first, first + count).
template <class Run, class Optimizer>
void train(Run& run, const Model& model, Optimizer& optimizer, std::shared_ptr<ls::data::TensorDataset> dataset,
           int micro_batches, int first, int count, int steps, Result& result) {
  ls::nn::CrossEntropyLoss criterion;
  auto sampler = std::make_shared<ls::data::MicroBatchSampler>(
      kRows, ls::data::MicroBatchSamplerOptions{
                 .micro_batches = micro_batches, .first = first, .count = count, .batch_size = 3, .seed = 1});
  ls::data::DataLoader loader(dataset, {.batch_sampler = sampler});
  while (true) {
    for (const auto& [x, y] : loader) {
      optimizer.zero_grad();
      const ls::Device device = model.mean->device();
      const ls::Tensor loss = run.backward(
          x.to(device), y.to(device), [&](const ls::Tensor& x, const ls::Tensor& y) { return criterion(model(x), y); });
      result.norms.push_back(run.clip_grad_norm_(0.5));
      optimizer.step();
      result.losses.push_back(loss.template item<double>());
      if (static_cast<int>(result.losses.size()) == steps) return;
    }
  }
}

struct Options {
  int micro_batches = 4;
  int steps = 6;
  ls::parallel::Weighting weighting = ls::parallel::Weighting::kEqual;
};

template <class Optimizer, class OptimizerOptions>
Result run_accumulation(const Options& options, const OptimizerOptions& of_optimizer) {
  ls::manual_seed(7);
  auto dataset = make_dataset();
  Model model;
  ls::parallel::GradientAccumulation run(model,
                                         {.micro_batches = options.micro_batches, .weighting = options.weighting});
  Optimizer optimizer(run.parameters(), of_optimizer);
  Result result;
  train(run, model, optimizer, dataset, options.micro_batches, 0, options.micro_batches, options.steps, result);
  result.hash = ls::nn::parameter_hash(model);
  return result;
}

template <class Optimizer, class OptimizerOptions>
Result run_sharded(const Group& group, const Options& options, const OptimizerOptions& of_optimizer,
                   ls::parallel::ShardedDataParallelOptions of_run, ls::Device device = {}) {
  ls::manual_seed(7);
  auto dataset = make_dataset();
  Model model;
  model.to(device);
  const int each = options.micro_batches / group->size();
  of_run.micro_batches_per_rank = each;
  of_run.weighting = options.weighting;
  ls::parallel::ShardedDataParallel run(model, group, of_run);
  Optimizer optimizer(run.parameters(), of_optimizer);
  Result result;
  train(run, model, optimizer, dataset, options.micro_batches, group->rank() * each, each, options.steps, result);
  for (const ls::parallel::LinkTraffic& link : group->traffic().step_links())
    result.copied += link.phase == ls::parallel::Phase::kOffload ? link.bytes : 0;
  CHECK(result.copied == run.plan().offload_bytes);
  run.gathered([&] { result.hash = ls::nn::parameter_hash(model); });
  return result;
}

}  // namespace sharded_test
