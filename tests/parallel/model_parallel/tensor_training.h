// Training with tensor parallelism: a transformer, and a run of it with any number of slices on any ranks, in any mode.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/support/groups.h"

namespace tensor_training {

namespace par = ls::parallel;
namespace nn = ls::nn;

constexpr std::int64_t kVocabulary = 19, kSamples = 8, kTime = 6;

struct ModelOptions {
  std::int64_t width = 32, heads = 8;
  bool fused = false;  // queries, keys and values in one layer
  bool gated = false;  // a second column-parallel layer in the MLP
  bool bias = true, frozen = false, recompute = false, bf16 = false;
  bool deferred = false;  // initialisation
  double dropout = 0;     // of attention, of the columns in the MLP, and behind the row-parallel layers
};

struct Attention : nn::Module {
  explicit Attention(const ModelOptions& options)
      : options(options),
        proj(add<nn::Linear>("proj", options.width, options.width, nn::LinearOptions{.bias = options.bias})) {
    const nn::LinearOptions linear{.bias = options.bias};
    if (options.fused)
      qkv = &add<nn::Linear>("qkv", options.width, 3 * options.width, linear);
    else
      for (const char* name : {"query", "key", "value"})
        separate.push_back(&add<nn::Linear>(name, options.width, options.width, linear));
  }
  ls::Tensor forward(const ls::Tensor& x) const override {
    std::vector<ls::Tensor> parts;
    if (qkv)
      parts = ls::chunk((*qkv)(x), 3, -1);
    else
      for (const nn::Linear* each : separate) parts.push_back((*each)(x));
    for (ls::Tensor& t : parts)
      t = t.reshape({t.size(0), t.size(1), -1, options.width / options.heads}).transpose(1, 2);
    const ls::Tensor y = ls::scaled_dot_product_attention(
        parts[0], parts[1], parts[2], {.dropout_p = is_training() ? options.dropout : 0, .is_causal = true});
    return proj(y.transpose(1, 2).flatten(2));
  }

  ModelOptions options;
  nn::Linear* qkv = nullptr;
  std::vector<nn::Linear*> separate;
  nn::Linear& proj;
};

struct Mlp : nn::Module {
  explicit Mlp(const ModelOptions& options)
      : up(add<nn::Linear>("up", options.width, 2 * options.width, nn::LinearOptions{.bias = options.bias})),
        down(add<nn::Linear>("down", 2 * options.width, options.width, nn::LinearOptions{.bias = options.bias})),
        inner(add<nn::Dropout>("inner", options.dropout)), outer(add<nn::Dropout>("outer", options.dropout)) {
    if (options.gated) gate = &add<nn::Linear>("gate", options.width, 2 * options.width);
  }
  ls::Tensor forward(const ls::Tensor& x) const override {
    const ls::Tensor y = ls::gelu(up(x));
    return outer(down(inner(gate ? y * (*gate)(x) : y)));
  }
  nn::Linear &up, &down;
  nn::Linear* gate = nullptr;
  nn::Dropout &inner, &outer;
};

struct Block : nn::Module {
  explicit Block(const ModelOptions& options)
      : norm1(add<nn::LayerNorm>("norm1", ls::Shape{options.width})), attention(add<Attention>("attention", options)),
        norm2(add<nn::LayerNorm>("norm2", ls::Shape{options.width})), mlp(add<Mlp>("mlp", options)) {}
  ls::Tensor forward(const ls::Tensor& x) const override {
    const ls::Tensor y = x + attention(norm1(x));
    return y + mlp(norm2(y));
  }
  nn::LayerNorm& norm1;
  Attention& attention;
  nn::LayerNorm& norm2;
  Mlp& mlp;
};

struct Model : nn::Module {
  explicit Model(const ModelOptions& options)
      : options(options), tokens(add<nn::Embedding>("tokens", kVocabulary, options.width)),
        blocks(add<nn::ModuleList>("blocks")), norm(add<nn::LayerNorm>("norm", ls::Shape{options.width})),
        head(add<nn::Linear>("head", options.width, kVocabulary)) {
    for (int i = 0; i < 2; ++i) blocks.push_back(Block(options));
    if (!options.frozen) return;
    blocks[0].parameters()[2].master().requires_grad_(false);  // a weight that is cut
    norm.bias->requires_grad_(false);
  }
  ls::Tensor forward(const ls::Tensor& ids) const override {
    ls::Tensor x = tokens(ids);
    for (nn::Module& block : blocks)
      x = options.recompute ? ls::autograd::checkpoint([&block](const ls::Tensor& t) { return block(t); }, x)
                            : block(x);
    return head(norm(x));
  }

  ModelOptions options;
  nn::Embedding& tokens;
  nn::ModuleList& blocks;
  nn::LayerNorm& norm;
  nn::Linear& head;
};

inline par::ParallelPlan plan_of(const ModelOptions& options) {
  par::ParallelPlan plan = {{"blocks.*.mlp.up", par::ColwiseParallel{}},
                            {"blocks.*.mlp.down", par::RowwiseParallel{}},
                            {"blocks.*.attention.proj", par::RowwiseParallel{}}};
  if (options.gated) plan.emplace_back("blocks.*.mlp.gate", par::ColwiseParallel{});
  if (options.fused)
    plan.emplace_back("blocks.*.attention.qkv", par::ColwiseParallel{.parts = 3});
  else
    for (const char* name : {"query", "key", "value"})
      plan.emplace_back(fmt::format("blocks.*.attention.{}", name), par::ColwiseParallel{});
  return plan;
}

struct Layout {
  int tp = 1, dp = 1;
  int stage = 0;  // 0: DistributedDataParallel
  int ranks() const { return tp * dp; }
  std::string describe() const { return fmt::format("tp {} x dp {}, stage {}", tp, dp, stage); }
};

constexpr int kMicroBatches = 4;  // of a step

// What a run leaves, put together from all ranks.
struct Outcome {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<float>> parameters;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

constexpr float kUnset = 12345;

// Adds the elements that this rank has of a parameter to those of the others. Several ranks have equal ones.
inline void put(Outcome& outcome, const par::ShardedParameter& piece) {
  const nn::ParameterSlice* const slice = piece.parameter.slice();
  std::vector<float>& whole = outcome.parameters[slice ? slice->name : piece.name];
  whole.resize(static_cast<std::size_t>(slice ? slice->shape.numel() : piece.shape.numel()), kUnset);
  const std::vector<float> values = piece.parameter.master().detach().reshape({-1}).to_vector<float>();
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(values.size()); ++i) {
    const std::int64_t in_slice = piece.part.at(i);
    float& element = whole[static_cast<std::size_t>(slice ? slice->part.at(in_slice) : in_slice)];
    const float value = values[static_cast<std::size_t>(i)];
    if (element != kUnset && element != value) {
      FAIL_CHECK("ranks have different values of ", piece.name);
      return;
    }
    element = value;
  }
}

template <class Run>
void train_steps(Run& run, const Layout& layout, bool bf16, int d, int steps, Outcome& outcome) {
  ls::optim::AdamW optimizer(run.parameters(), {.lr = 1e-2});
  const nn::CrossEntropyLoss criterion;
  const std::int64_t rows = kSamples / layout.dp;
  for (int step = 0; step < steps; ++step) {
    const ls::Tensor ids =
        (ls::arange(kSamples * (kTime + 1)) * (7 + step) % 23 % kVocabulary).reshape({kSamples, kTime + 1});
    const ls::Tensor own = ids.narrow(0, d * rows, rows);
    optimizer.zero_grad();
    const ls::Tensor loss =
        run.backward(own.slice(1, 0, kTime), own.slice(1, 1, kTime + 1), [&](const ls::Tensor& x, const ls::Tensor& y) {
          const ls::AutocastGuard autocast(bf16 ? std::optional(ls::kBFloat16) : std::nullopt);
          return criterion(run.module()(x).flatten(0, 1).to(ls::kFloat32), y.flatten());
        });
    outcome.losses.push_back(loss.template item<double>());
    outcome.norms.push_back(run.clip_grad_norm_(0.5));
    optimizer.step();
  }
}

// A model with its plan.
struct Subject {
  std::function<std::unique_ptr<nn::Module>()> make;
  par::ParallelPlan plan;
  bool bf16 = false, deferred = false;
};

inline void train_on(const Group& group, int slices, const Layout& layout, const Subject& subject, int steps,
                     Outcome& outcome, std::mutex& mutex) {
  ls::manual_seed(3);
  const par::DeviceMesh mesh(group, {{"dp", layout.dp}, {"tp", layout.tp}});
  std::optional<nn::DeferredInit> deferred;
  if (subject.deferred) deferred.emplace();
  const std::unique_ptr<nn::Module> model = subject.make();
  deferred.reset();
  par::parallelize(*model, mesh["tp"], {.tensor_slices = slices, .plan = subject.plan});
  Outcome own;
  const int d = mesh["dp"].rank(), each = kMicroBatches / layout.dp;
  const auto finish = [&](auto& run) {
    train_steps(run, layout, subject.bf16, d, steps, own);
    const std::lock_guard lock(mutex);
    if (outcome.losses.empty()) outcome.losses = own.losses, outcome.norms = own.norms;
    CHECK(outcome.losses == own.losses);
    CHECK(outcome.norms == own.norms);
    for (const par::ShardedParameter& piece : run.named_parameters()) put(outcome, piece);
  };
  if (layout.dp == 1 && layout.stage == 0) {
    par::GradientAccumulation run(*model, {.micro_batches = kMicroBatches});
    finish(run);
  } else if (layout.stage == 0) {
    par::DistributedDataParallel run(*model, mesh["dp"].group(), {.micro_batches_per_rank = each});
    finish(run);
  } else {
    par::ShardedDataParallel run(*model, mesh["dp"].group(),
                                 {.stage = layout.stage, .units = {"blocks.*"}, .micro_batches_per_rank = each});
    finish(run);
  }
}

inline Outcome train_subject(int slices, const Layout& layout, const Subject& subject, int steps = 3) {
  Outcome outcome;
  std::mutex mutex;
  if (layout.ranks() == 1)
    train_on(nullptr, slices, layout, subject, steps, outcome, mutex);
  else
    with_threads("local", layout.ranks(),
                 [&](const Group& group) { train_on(group, slices, layout, subject, steps, outcome, mutex); });
  return outcome;
}

inline Subject subject_with(const ModelOptions& options) {
  return {.make = [options] { return std::make_unique<Model>(options); },
          .plan = plan_of(options),
          .bf16 = options.bf16,
          .deferred = options.deferred};
}
inline Outcome train(int slices, const Layout& layout, const ModelOptions& options, int steps = 3) {
  return train_subject(slices, layout, subject_with(options), steps);
}

// All layouts have the bits of the first.
inline void check_same_bits(int slices, const Subject& subject, const std::vector<Layout>& layouts) {
  std::optional<Outcome> want;
  for (const Layout& layout : layouts) {
    CAPTURE(slices);
    CAPTURE(layout.describe());
    const Outcome got = train_subject(slices, layout, subject);
    if (!want) want = got;
    CHECK(got.losses == want->losses);
    CHECK(got.norms == want->norms);
    for (const auto& [name, values] : want->parameters) CHECK_MESSAGE(got.parameters.at(name) == values, name);
    CHECK(got.parameters.size() == want->parameters.size());
  }
}

inline void check_same(int slices, const ModelOptions& options, const std::vector<Layout>& layouts) {
  check_same_bits(slices, subject_with(options), layouts);
}

// With several slices, losses are near those of one.
inline void check_near(int slices, const Layout& layout, const Subject& subject, int steps = 3) {
  const Outcome one = train_subject(1, {}, subject, steps),
 several = train_subject(slices, layout, subject, steps);
  for (std::size_t i = 0; i < one.losses.size(); ++i) {
    CHECK(several.losses[i] == doctest::Approx(one.losses[i]).epsilon(1e-5));
    CHECK(several.norms[i] == doctest::Approx(one.norms[i]).epsilon(1e-4));
  }
}

}  // namespace tensor_training
