// For the same micro-batches, every mode gives the same bits.
//
// One model with every feature that could distinguish modes: a tied weight, dropout, layer norm, an embedding,
// attention, buffers that forward writes (batch norm's cumulative ones among them), a padding row, convolution and
// pooling, and a parameter that some micro-batches do not use. A part of it can be recomputed in backward.
#pragma once

#include "tests/support/groups.h"

struct Everything : ls::nn::Module {
  ls::nn::Embedding& embedding = add("embedding", ls::nn::Embedding(12, 8, {.padding_idx = 3}));
  ls::nn::LayerNorm& norm = add<ls::nn::LayerNorm>("norm", 8);
  ls::nn::Dropout& dropout = add<ls::nn::Dropout>("dropout", 0.3);
  ls::nn::Linear& hidden = add<ls::nn::Linear>("hidden", 8, 8);
  ls::nn::Conv2d& conv = add("conv", ls::nn::Conv2d(2, 3, 2, {.padding = 1}));
  ls::nn::BatchNorm2d& batch_norm = add("batch_norm", ls::nn::BatchNorm2d(3, {.momentum = std::nullopt}));
  ls::nn::Linear& from_picture = add<ls::nn::Linear>("from_picture", 3, 8);
  ls::nn::Linear& rare = add<ls::nn::Linear>("rare", 8, 8);
  ls::nn::Linear& head = add<ls::nn::Linear>("head", 8, 12);
  ls::nn::Buffer& mean = add_buffer("mean", ls::zeros({8}));
  bool recompute = false;  // a part of forward is computed again in backward

  // tokens: (batch) i64 -> scores (batch, 12)
  ls::Tensor forward(const ls::Tensor& tokens) const override {
    ls::Tensor x = norm(embedding(tokens));
    {
      const ls::NoGradGuard no_grad;  // a running mean, as in batch normalisation
      mean->mul_(0.9);
      mean->add_(ls::mean(x.detach(), {0}), 0.1);
    }
    const auto block = [this](const ls::Tensor& x) {
      const ls::Tensor y = ls::gelu_tanh(hidden(dropout(x)) + *mean);
      return y + from_picture(picture(y)) + attended(y);
    };
    x = recompute ? ls::autograd::checkpoint(block, x) : block(x);
    if (tokens.select(0, 0).item<std::int64_t>() % 3 == 0) x = x + rare(x);
    x = ls::linear(x, embedding.weight, ls::Tensor()).narrow(-1, 0, 12) + head(x);  // the embedding again: tied
    return x;
  }

  // The features as two heads of two positions, with dropout: (batch, 8) -> (batch, 8)
  static ls::Tensor attended(const ls::Tensor& features) {
    const ls::Tensor x = features.reshape({-1, 2, 2, 2});
    return ls::scaled_dot_product_attention(x, x * 0.5, x, {.dropout_p = 0.2, .is_causal = true}).reshape({-1, 8});
  }

  // The features as images of two channels: (batch, 8) -> (batch, 3)
  ls::Tensor picture(const ls::Tensor& features) const {
    const ls::Tensor x = ls::relu(batch_norm(conv(features.reshape({-1, 2, 2, 2}))));  // (batch, 3, 3, 3)
    return ls::avg_pool2d(ls::max_pool2d(x, 2, 1), 2).flatten(1);
  }
};

struct SameBitsRun {
  std::uint64_t hash = 0;
  std::vector<double> losses;
};

// Options of forward.
struct Variation {
  bool recompute = false;  // backward recomputes a part of forward
  bool bf16 = false;       // forward runs under autocast
};

// The result of a training run: parameters, buffers and the optimizer's state, in one hash.
template <class Optimizer>
std::uint64_t state_hash(const Everything& model, const Optimizer& optimizer) {
  struct State : ls::nn::Module {};
  State state;
  int i = 0;
  for (const auto& [name, tensor] : optimizer.state_dict()) state.add_buffer("s" + std::to_string(i++), tensor.clone());
  return ls::nn::parameter_hash(model) * 31 + ls::nn::parameter_hash(state);
}

// Runs 20 steps of `micro_batches` micro-batches, of which this run has [first, first + count), on a model that
// `make_run(model)` wraps.
template <class Optimizer, class MakeRun, class OptimizerOptions>
SameBitsRun train_same_bits(int micro_batches, int first, int count, const OptimizerOptions& options, MakeRun make_run,
                            const Variation& variation) {
  ls::manual_seed(7);
  const std::int64_t rows = 203;
  auto dataset = std::make_shared<ls::data::TensorDataset>(ls::randint(0, 12, {rows}), ls::randint(0, 12, {rows}));
  Everything model;
  model.recompute = variation.recompute;
  auto run = make_run(model);
  Optimizer optimizer(model.parameters(), options);
  ls::nn::CrossEntropyLoss criterion;
  auto sampler = std::make_shared<ls::data::MicroBatchSampler>(
      rows, ls::data::MicroBatchSamplerOptions{.micro_batches = micro_batches,
                                               .first = first,
                                               .count = count,
                                               .batch_size = 3,
                                               .seed = 1,
                                               .drop_last = true});
  ls::data::DataLoader loader(dataset, {.batch_sampler = sampler});
  SameBitsRun result;
  while (result.losses.size() < 20) {
    for (const auto& [x, y] : loader) {
      optimizer.zero_grad();
      std::optional<ls::AutocastGuard> autocast(std::in_place, ls::kBFloat16, variation.bf16);
      const ls::Tensor loss =
          run->backward(x, y, [&](const ls::Tensor& x, const ls::Tensor& y) { return criterion(model(x), y); });
      autocast.reset();
      ls::nn::clip_grad_norm_(model.parameters(), 0.5);
      optimizer.step();
      result.losses.push_back(loss.item<double>());
      if (result.losses.size() == 20) break;
    }
  }
  result.hash = state_hash(model, optimizer);
  return result;
}

inline std::vector<ls::Device> virtual_devices(int count) {
  std::vector<ls::Device> devices;
  for (int i = 0; i < count; ++i) devices.emplace_back("cpu:" + std::to_string(i));
  return devices;
}

template <class Optimizer, class Options>
SameBitsRun run_accumulation(int micro_batches, const Options& options, const Variation& variation = {}) {
  return train_same_bits<Optimizer>(
      micro_batches, 0, micro_batches, options,
      [&](Everything& model) {
        return std::make_unique<ls::parallel::GradientAccumulation>(
            model, ls::parallel::GradientAccumulationOptions{.micro_batches = micro_batches});
      },
      variation);
}

template <class Optimizer, class Options>
SameBitsRun run_data_parallel(int micro_batches, const Options& options, const Variation& variation = {}) {
  return train_same_bits<Optimizer>(
      micro_batches, 0, micro_batches, options,
      [&](Everything& model) {
        return std::make_unique<ls::parallel::DataParallel>(model, virtual_devices(micro_batches));
      },
      variation);
}

template <class Optimizer, class Options>
SameBitsRun run_distributed(const Group& group, int micro_batches, const Options& options,
                            const Variation& variation = {}) {
  const int each = micro_batches / group->size();
  return train_same_bits<Optimizer>(
      micro_batches, group->rank() * each, each, options,
      [&](Everything& model) {
        return std::make_unique<ls::parallel::DistributedDataParallel>(
            model, group,
            ls::parallel::DistributedDataParallelOptions{.bucket_cap_mb = 0.0005, .micro_batches_per_rank = each});
      },
      variation);
}
