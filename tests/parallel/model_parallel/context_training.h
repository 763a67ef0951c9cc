// Training with sequences in blocks: a transformer, and a run of it on any mesh of cp and dp, in any mode.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/support/groups.h"

namespace context_training {

namespace par = ls::parallel;
namespace nn = ls::nn;
using Kind = par::ContextAttention;

constexpr std::int64_t kVocabulary = 11, kWidth = 16, kSamples = 8, kTime = 16;

struct ModelOptions {
  std::int64_t heads = 4, kv_heads = 4;
  double dropout = 0;
  bool recompute = false, frozen = false, bf16 = false;
  bool accumulates = false;  // another batch before each step, in no_sync
  bool multihead = false;    // nn::MultiheadAttention in place of a call of scaled_dot_product_attention
  bool padded = false;       // with .multihead: no query attends to the last three positions of the sequence
  bool bias = true;          // of linear layers, not with .multihead
};

struct SelfAttention : nn::Module {
  explicit SelfAttention(const ModelOptions& options)
      : options(options), query(add_linear("query", kWidth)),
        keys(add_linear("keys", 2 * kWidth / options.heads * options.kv_heads)), proj(add_linear("proj", kWidth)) {}

  ls::Tensor forward(const ls::Tensor& x) const override {
    const auto heads = [&](const ls::Tensor& t) {
      return t.reshape({t.size(0), t.size(1), -1, kWidth / options.heads}).transpose(1, 2);
    };
    const auto parts = ls::chunk(keys(x), 2, -1);
    const ls::Tensor y = ls::scaled_dot_product_attention(heads(query(x)), heads(parts[0]), heads(parts[1]),
                                                          {.dropout_p = is_training() ? options.dropout : 0,
                                                           .is_causal = true,
                                                           .enable_gqa = options.kv_heads < options.heads});
    return proj(y.transpose(1, 2).flatten(2));
  }
  nn::Linear& add_linear(const char* name, std::int64_t out) {
    return add<nn::Linear>(name, kWidth, out, nn::LinearOptions{.bias = options.bias});
  }

  ModelOptions options;
  nn::Linear &query, &keys, &proj;
};

struct MultiheadSelfAttention : nn::Module {
  explicit MultiheadSelfAttention(const ModelOptions& options)
      : padded(options.padded),
        attention(add<nn::MultiheadAttention>("attention", kWidth, options.heads,
                                              nn::MultiheadAttentionOptions{.dropout = options.dropout})) {}

  ls::Tensor forward(const ls::Tensor& x) const override {
    ls::Tensor padding;
    if (padded) padding = (ls::arange(kTime) >= kTime - 3).expand({x.size(0), kTime});
    return attention.forward(x, x, x, {.key_padding_mask = padding, .is_causal = true});
  }

  bool padded;
  nn::MultiheadAttention& attention;
};

struct Block : nn::Module {
  explicit Block(const ModelOptions& options)
      : norm1(add<nn::LayerNorm>("norm1", ls::Shape{kWidth})),
        attention(options.multihead ? static_cast<nn::Module&>(add<MultiheadSelfAttention>("attention", options))
                                    : add<SelfAttention>("attention", options)),
        norm2(add<nn::LayerNorm>("norm2", ls::Shape{kWidth})),
        up(add<nn::Linear>("up", kWidth, 2 * kWidth, nn::LinearOptions{.bias = options.bias})),
        down(add<nn::Linear>("down", 2 * kWidth, kWidth, nn::LinearOptions{.bias = options.bias})),
        dropout(add<nn::Dropout>("dropout", options.dropout)) {}

  ls::Tensor forward(const ls::Tensor& x) const override {
    const ls::Tensor y = x + attention(norm1(x));
    return y + dropout(down(ls::gelu(up(norm2(y)))));
  }

  nn::LayerNorm& norm1;
  nn::Module& attention;
  nn::LayerNorm& norm2;
  nn::Linear &up, &down;
  nn::Dropout& dropout;
};

struct Model : nn::Module {
  explicit Model(const ModelOptions& options)
      : options(options), tokens(add<nn::Embedding>("tokens", kVocabulary, kWidth)),
        positions(add<nn::Embedding>("positions", kTime, kWidth)), blocks(add<nn::ModuleList>("blocks")),
        head(add<nn::Linear>("head", kWidth, kVocabulary)) {
    for (int i = 0; i < 2; ++i) blocks.push_back(Block(options));
    if (!options.frozen) return;
    positions.weight->requires_grad_(false);
    head.bias->requires_grad_(false);
  }
  ls::Tensor forward_inputs(const std::vector<ls::Tensor>& in) const override {
    ls::Tensor x = tokens(in[0]) + positions(in[1]);
    for (nn::Module& block : blocks)
      x = options.recompute ? ls::autograd::checkpoint([&block](const ls::Tensor& t) { return block(t); }, x)
                            : block(x);
    return head(x);
  }

  ModelOptions options;
  nn::Embedding &tokens, &positions;
  nn::ModuleList& blocks;
  nn::Linear& head;
};

struct Layout {
  int cp = 1, dp = 1;
  int stage = 0;  // 0: DistributedDataParallel
  Kind kind = Kind::kRingZigzag;
  bool gather_keys = false;

  std::string describe() const {
    return fmt::format("cp {} x dp {}, stage {}, kind {}, gathered {}", cp, dp, stage, static_cast<int>(kind),
                       gather_keys);
  }
};

struct Outcome {
  std::uint64_t hash = 0;
  std::vector<double> losses;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

constexpr int kMicroBatches = 4;  // of a step

// (tokens, positions, targets) of all samples of a step
inline std::vector<ls::Tensor> batch_of(int step) {
  const ls::Tensor ids =
      (ls::arange(kSamples * (kTime + 1)) * (7 + step) % 13 % kVocabulary).reshape({kSamples, kTime + 1});
  return {ids.slice(1, 0, kTime), ls::arange(kTime).expand({kSamples, kTime}), ids.slice(1, 1, kTime + 1)};
}

template <class Run>
void train_steps(Run& run, ls::optim::Optimizer& optimizer, const ls::parallel::DeviceMesh* mesh, const Layout& layout,
                 const ModelOptions& options, int first, int last, Outcome& outcome) {
  const std::int64_t d = mesh ? (*mesh)["dp"].rank() : 0, rows = kSamples / layout.dp;
  const nn::CrossEntropyLoss criterion;
  const auto backward = [&](int batch) {
    std::vector<ls::Tensor> mine;
    for (const ls::Tensor& each : batch_of(batch)) mine.push_back(each.narrow(0, d * rows, rows));
    if (mesh) mine = par::split_sequence(mine, (*mesh)["cp"], layout.kind);
    return run.backward(std::vector{mine[0], mine[1]}, mine[2],
                        [&](const std::vector<ls::Tensor>& x, const ls::Tensor& y) {
                          const ls::AutocastGuard autocast(ls::kBFloat16, options.bf16);
                          return criterion(run.module()(x).flatten(0, 1), y.flatten());
                        });
  };
  for (int step = first; step < last; ++step) {
    optimizer.zero_grad();
    if (options.accumulates) {
      const auto alone = run.no_sync();
      backward(step + 1000);
    }
    outcome.losses.push_back(backward(step).template item<double>());
    run.clip_grad_norm_(0.5);
    optimizer.step();
  }
}

template <class Make>
Outcome train_with(const Make& make_run, const ls::parallel::DeviceMesh* mesh, const Layout& layout,
                   const ModelOptions& options, int steps) {
  ls::manual_seed(5);
  Model model(options);
  if (mesh) par::context_parallel(model, (*mesh)["cp"], {.attention = layout.kind, .gather_keys = layout.gather_keys});
  const auto run = make_run(model);
  ls::optim::AdamW optimizer(run->parameters(), {.lr = 1e-2});
  Outcome outcome;
  train_steps(*run, optimizer, mesh, layout, options, 0, steps, outcome);
  run->gathered([&] { outcome.hash = nn::parameter_hash(model); });
  return outcome;
}

// On the group's ranks, as a mesh of cp and dp. Null: one process.
inline Outcome train(const Group& group, const Layout& layout, const ModelOptions& options, int steps) {
  if (!group)
    return train_with(
        [](Model& model) {
          return std::make_unique<par::GradientAccumulation>(
              model, par::GradientAccumulationOptions{.micro_batches = kMicroBatches});
        },
        nullptr, layout, options, steps);
  const par::DeviceMesh mesh(group, {{"cp", layout.cp}, {"dp", layout.dp}});
  const Group all = mesh.flatten({"cp", "dp"}).group();
  const int per_rank = kMicroBatches / layout.dp;
  if (layout.stage == 0)
    return train_with(
        [&](Model& model) {
          return std::make_unique<par::DistributedDataParallel>(
              model, all, par::DistributedDataParallelOptions{.micro_batches_per_rank = per_rank});
        },
        &mesh, layout, options, steps);
  return train_with(
      [&](Model& model) {
        return std::make_unique<par::ShardedDataParallel>(
            model, all,
            par::ShardedDataParallelOptions{
                .stage = layout.stage, .units = {"blocks.*"}, .micro_batches_per_rank = per_rank});
      },
      &mesh, layout, options, steps);
}

// The outcome of all ranks, which are threads.
inline Outcome train_threads(const Layout& layout, const ModelOptions& options, int steps) {
  std::vector<Outcome> of_ranks(static_cast<std::size_t>(layout.cp * layout.dp));
  with_threads("local", layout.cp * layout.dp, [&](const Group& group) {
    of_ranks[static_cast<std::size_t>(group->rank())] = train(group, layout, options, steps);
  });
  for (const Outcome& each : of_ranks) CHECK(each == of_ranks[0]);
  return of_ranks[0];
}

// The same from a process of its own, for programs that fork later.
inline Outcome train_threads_apart(const Layout& layout, const ModelOptions& options, int steps) {
  const NumberPipe box;
  check_processes(1, [&](int /*rank*/) {
    const Outcome outcome = train_threads(layout, options, steps);
    box.send(std::bit_cast<std::int64_t>(outcome.hash));
    for (const double loss : outcome.losses) box.send(std::bit_cast<std::int64_t>(loss));
  });
  Outcome outcome{.hash = std::bit_cast<std::uint64_t>(box.receive()), .losses = {}};
  for (int i = 0; i < steps; ++i) outcome.losses.push_back(std::bit_cast<double>(box.receive()));
  return outcome;
}

// Every rank of a group of the backend must have the outcome.
inline void check_outcome(const std::string& backend, const Layout& layout, const ModelOptions& options, int steps,
                          const Outcome& want) {
  const std::string text = layout.describe();
  CAPTURE(text);
  with_group(backend, layout.cp * layout.dp,
             [&](const Group& group) {
               const Outcome got = train(group, layout, options, steps);
               CHECK(got.hash == want.hash);
               CHECK(got.losses == want.losses);
             },
             {.reduction = par::Reduction::kCanonical});
}

}  // namespace context_training
