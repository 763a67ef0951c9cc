// The model of a random case, and the samples of its micro-batches.
#pragma once

#include <utility>

#include "tests/parallel/step/random_case.h"
#include "tests/support/groups.h"

namespace random_case {

namespace par = ls::parallel;
namespace nn = ls::nn;

constexpr std::int64_t kWidth = 8;
constexpr int kSteps = 3;

inline ls::Device device_of(const Case& of) { return of.place == Place::kHost ? "cpu:0" : "cpu:1"; }

// (rows, kWidth) -> (rows, kWidth). Most of its parameters are in a module of its own, so that units can be nested.
struct RandomBlock : nn::Module {
  RandomBlock(Block kind, std::size_t index) : kind(kind) {
    if (kind == Block::kConv) {
      conv = &add("inner", nn::Conv1d(2, 2, 3, {.padding = 1}));
    } else if (kind == Block::kLstm) {
      lstm = &add("inner", nn::LSTM(4, 4, {.batch_first = true}));
    } else if (kind == Block::kEmbedding) {
      embedding = &add<nn::Embedding>("inner", 5, kWidth);
    } else {
      const std::int64_t out = kind == Block::kLarge ? 600 : kWidth;
      linear = &add("inner", nn::Linear(kWidth, out, {.bias = kind != Block::kPlain}));
    }
    if (kind == Block::kNormed) norm = &add<nn::LayerNorm>("norm", kWidth);
    if (kind == Block::kBatchNorm)
      batch_norm = &add<nn::BatchNorm1d>("norm", kWidth, nn::BatchNormOptions{.all_micro_batches = index % 2 == 1});
    updates_all = batch_norm && index % 2 == 1;
    if (kind == Block::kUnused) add_parameter("unused", ls::full({3}, 0.5));
    if (kind == Block::kFrozen) linear->weight->requires_grad_(false);
    if (kind == Block::kFrozen || kind == Block::kHalfFrozen) linear->bias->requires_grad_(false);
    for (int i = 0; kind == Block::kVectors && i < 5; ++i)
      vectors.push_back(&add_parameter("vector" + std::to_string(i), ls::ones({kWidth})));
  }
  ls::Tensor forward(const ls::Tensor& x) const override {
    const std::int64_t rows = x.size(0);
    ls::Tensor y = x;
    if (conv) y = (*conv)(x.reshape({rows, 2, 4})).reshape({rows, kWidth});
    if (lstm) y = (*lstm)(x.reshape({rows, 2, 4})).reshape({rows, kWidth});
    if (embedding) y = x * (*embedding)(ls::remainder(ls::arange(0, rows, 1, {.device = x.device()}), 5));
    if (linear) y = (*linear)(norm ? (*norm)(x) : x).narrow(-1, 0, kWidth);
    if (batch_norm) y = (*batch_norm)(y);
    for (const nn::Parameter* vector : vectors) y = y * **vector + **vector;
    if (tied) y = y + ls::matmul(x, **tied);
    return x + ls::tanh(y);
  }

  Block kind;
  nn::Linear* linear = nullptr;
  nn::Conv1d* conv = nullptr;
  nn::LSTM* lstm = nullptr;
  nn::Embedding* embedding = nullptr;
  nn::LayerNorm* norm = nullptr;
  nn::BatchNorm1d* batch_norm = nullptr;
  bool updates_all = false;  // every micro-batch updates the buffers
  std::vector<const nn::Parameter*> vectors;
  const nn::Parameter* tied = nullptr;  // (kWidth, kWidth), also of another module
};

struct Model : nn::Module {
  explicit Model(const Case& of) : of(of) {
    for (const Block block : of.blocks) blocks.push_back(RandomBlock(block, blocks.size()));
    if (of.sharing == Sharing::kTied) block(of.chosen).tied = &block(of.chosen).add_parameter("tied", in.weight);
    if (of.sharing == Sharing::kBorrowed) block(of.chosen).tied = &square_weight();
    set_values();
    if (of.precision == Precision::kF64) to(ls::kFloat64);
    to(device_of(of));
  }
  RandomBlock& block(std::size_t i) const { return dynamic_cast<RandomBlock&>(blocks[i]); }
  // A (kWidth, kWidth) weight of another block, if there is one.
  const nn::Parameter& square_weight() const {
    for (std::size_t i = 0; i < of.blocks.size(); ++i) {
      const RandomBlock& other = block(i);
      if (i != of.chosen && other.linear && other.kind != Block::kLarge) return other.linear->weight;
    }
    return square.weight;
  }
  // Without the process's random numbers, which threads share.
  void set_values() {
    const ls::NoGradGuard no_grad;
    std::uint32_t salt = of.number;
    for (const nn::Parameter& parameter : parameters()) parameter->copy_(numbers(parameter->shape(), {}, ++salt) * 0.4);
  }
  bool skips(int micro_batch) const {
    const int last = of.ranks * of.per_rank() - 1;
    return (of.skip == Skip::kFirstMicroBatch && micro_batch == 0) ||
           (of.skip == Skip::kLastMicroBatch && micro_batch == last);
  }
  ls::Tensor forward(const ls::Tensor& x) const override {
    ls::Tensor y = square(in(x));
    for (std::size_t first = 0; first < of.blocks.size();) {
      const std::size_t count =
          of.recompute == Recompute::kSegments ? std::min<std::size_t>(3, of.blocks.size() - first) : 1;
      const auto part = [this, first, count](const ls::Tensor& x) {
        ls::Tensor y = x;
        for (std::size_t i = first; i < first + count; ++i) {
          if (i == of.chosen && skips_block) continue;
          y = blocks[i](y);
          if (i == of.chosen && of.sharing == Sharing::kTwice) y = blocks[i](y);
        }
        return y;
      };
      const bool repeats =
          of.recompute != Recompute::kNone && (of.recompute != Recompute::kSomeBlocks || first % 2 == 0);
      y = repeats ? ls::autograd::checkpoint(part, y) : part(y);
      first += count;
    }
    return out(y);
  }

  Case of;
  nn::Linear& in = add<nn::Linear>("in", kWidth, kWidth);
  nn::ModuleList& blocks = add<nn::ModuleList>("blocks");
  nn::Linear& square = add<nn::Linear>("square", kWidth, kWidth);
  nn::Linear& out = add<nn::Linear>("out", kWidth, 1);
  bool skips_block = false;
};

// Rows of each micro-batch of a step, over all ranks. Empty micro-batches are at the end of a rank.
inline std::vector<std::int64_t> rows_of_step(const Case& of, int step) {
  const int ranks = of.ranks, each = of.per_rank();
  std::vector<std::int64_t> rows;
  for (int rank = 0; rank < ranks; ++rank) {
    const bool is_empty = (of.samples == Samples::kFirstEmpty && rank == 0) ||
                          (of.samples == Samples::kLastEmpty && rank == ranks - 1) ||
                          (of.samples == Samples::kMiddleEmpty && rank == 1) ||
                          (of.joins() && rank != static_cast<int>(of.number) % ranks && step > rank);
    for (int i = 0; i < each; ++i)
      rows.push_back(is_empty ? 0 : of.samples == Samples::kEven || (rank + i) % 2 == 0 ? 4 : 3);
    // A rank distributes its rows itself, larger micro-batches first.
    std::sort(rows.end() - each, rows.end(), std::greater<>());
  }
  return rows;
}

struct Data {
  ls::Tensor x, y;
};
// The samples of a micro-batch; the first element of y is the micro-batch's number.
inline Data samples_of(const Case& of, int step, int micro_batch, std::int64_t rows) {
  const ls::DType dtype = of.precision == Precision::kF64 ? ls::kFloat64 : ls::kFloat32;
  const auto salt = static_cast<std::uint32_t>(1000 * step + micro_batch);
  return {numbers({rows, kWidth}, {.dtype = dtype, .device = device_of(of)}, salt),
          ls::full({rows, 1}, micro_batch, {.dtype = dtype, .device = device_of(of)})};
}

inline ls::Tensor loss_of(Model& model, const ls::Tensor& x, const ls::Tensor& y) {
  model.skips_block = model.skips(static_cast<int>(y.select(0, 0).item<double>()));
  const ls::Tensor difference = model(x) - y * 0.1;
  return ls::mean(difference * difference);
}

}  // namespace random_case
