// Training with tensor parallelism: a transformer, and a run of it with any number of slices on any ranks, in any mode.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/parallel/model_parallel/put_together.h"
#include "tests/support/groups.h"

namespace tensor_training {

namespace par = ls::parallel;
namespace nn = ls::nn;

constexpr std::int64_t kVocabulary = 19, kSamples = 8, kTime = 8;

struct ModelOptions {
  std::int64_t width = 32, heads = 8;
  bool fused = false;  // queries, keys and values in one layer
  bool gated = false;  // a second column-parallel layer in the MLP
  bool bias = true, frozen = false, recompute = false, bf16 = false;
  bool deferred = false;                                  // initialisation
  bool vocabulary = false, tied = false, gathers = true;  // tokens and head cut along it; one weight; whole logits
  bool partial_recompute = false;  // of attention alone, from its column-parallel layers to the row-parallel one
  bool recompute_style = false;    // as recompute, by the plan
  bool sequence = false;           // each rank has some positions outside of the regions
  double dropout = 0;              // of attention, of the columns in the MLP, and behind the row-parallel layers
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
    if (!options.partial_recompute) return attend(x);
    return ls::autograd::checkpoint([this](const ls::Tensor& t) { return attend(t); }, x);
  }
  ls::Tensor attend(const ls::Tensor& x) const {
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
        head(add<nn::Linear>("head", options.width, kVocabulary, nn::LinearOptions{.bias = options.bias})) {
    if (options.tied) head.weight = tokens.weight;
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
  if (options.vocabulary) {
    plan.emplace_back("tokens", par::VocabParallel{});
    plan.emplace_back("head", par::VocabParallel{.gather_output = options.gathers});
  }
  if (options.recompute_style) plan.emplace_back("blocks.*", par::Recompute{});
  if (options.sequence) {
    plan.emplace_back("blocks.*.norm*", par::SequenceParallel{});
    plan.emplace_back("norm", par::SequenceParallel{});
  }
  if (options.sequence && !options.vocabulary) {
    plan.emplace_back("tokens", par::SequenceParallel{});
    plan.emplace_back("head", par::SequenceParallel{});
  }
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
constexpr int kSteps = LOCKSTEP_SLOWDOWN > 1 ? 1 : 3, kLongRun = LOCKSTEP_SLOWDOWN > 1 ? 2 : 20;

// What a run leaves, put together from all ranks.
struct Outcome {
  std::vector<double> losses, norms;
  put_together::Parameters parameters;
  std::uint64_t hash = 0;     // of tensor_subject.h: of the gathered model
  std::vector<float> logits;  // of tensor_subject.h: of the gathered model
  std::string file;           // of tensor_subject.h: the checkpoint's bytes
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

// Trains the steps [first, end).
template <class Run>
void train_steps(Run& run, ls::optim::Optimizer& optimizer, const Layout& layout, const ModelOptions& options, int d,
                 int first, int end, Outcome& outcome) {
  const nn::CrossEntropyLoss of_whole_logits;
  std::optional<par::VocabCrossEntropyLoss> of_columns;
  if (!options.gathers) of_columns.emplace(run.module(), "head");
  const auto criterion = [&](const ls::Tensor& x, const ls::Tensor& y) {
    return options.gathers ? of_whole_logits(x, y) : (*of_columns)(x, y);
  };
  const std::int64_t rows = kSamples / layout.dp;
  for (int step = first; step < end; ++step) {
    const ls::Tensor ids =
        (ls::arange(kSamples * (kTime + 1)) * (7 + step) % 23 % kVocabulary).reshape({kSamples, kTime + 1});
    const ls::Tensor own = ids.narrow(0, d * rows, rows);
    optimizer.zero_grad();
    const ls::Tensor loss =
        run.backward(own.slice(1, 0, kTime), own.slice(1, 1, kTime + 1), [&](const ls::Tensor& x, const ls::Tensor& y) {
          const ls::AutocastGuard autocast(options.bf16 ? std::optional(ls::kBFloat16) : std::nullopt);
          return criterion(run.module()(x).flatten(0, 1).to(ls::kFloat32), y.flatten());
        });
    outcome.losses.push_back(loss.template item<double>());
    outcome.norms.push_back(run.clip_grad_norm_(0.5));
    optimizer.step();
  }
}

// Calls body(run, model, position along the axis dp) on a rank of the layout.
template <class AModel = Model, class Body>
void on_mesh(const Group& group, int slices, const Layout& layout, const ModelOptions& options, const Body& body) {
  ls::manual_seed(3);
  const par::DeviceMesh mesh(group, {{"dp", layout.dp}, {"tp", layout.tp}});
  std::optional<nn::DeferredInit> deferred;
  if (options.deferred) deferred.emplace();
  AModel model(options);
  deferred.reset();
  par::parallelize(model, mesh["tp"],
                   {.tensor_slices = slices, .sequence_parallel = options.sequence, .plan = plan_of(options)});
  const int d = mesh["dp"].rank(), each = kMicroBatches / layout.dp;
  if (layout.dp == 1 && layout.stage == 0) {
    par::GradientAccumulation run(model, {.micro_batches = kMicroBatches});
    body(run, model, d);
  } else if (layout.stage == 0) {
    par::DistributedDataParallel run(model, mesh["dp"].group(), {.micro_batches_per_rank = each});
    body(run, model, d);
  } else {
    par::ShardedDataParallel run(model, mesh["dp"].group(),
                                 {.stage = layout.stage, .units = {"blocks.*"}, .micro_batches_per_rank = each});
    body(run, model, d);
  }
}

// The same on all ranks of the layout, as threads.
template <class AModel = Model, class Body>
void on_mesh_of_threads(int slices, const Layout& layout, const ModelOptions& options, const Body& body) {
  if (layout.ranks() == 1) return on_mesh<AModel>(nullptr, slices, layout, options, body);
  with_threads("local", layout.ranks(),
               [&](const Group& group) { on_mesh<AModel>(group, slices, layout, options, body); });
}

inline Outcome train(int slices, const Layout& layout, const ModelOptions& options, int steps = kSteps) {
  Outcome outcome;
  std::mutex mutex;
  on_mesh_of_threads(slices, layout, options, [&](auto& run, Model&, int d) {
    Outcome own;
    ls::optim::AdamW optimizer(run.parameters(), {.lr = 1e-2});
    train_steps(run, optimizer, layout, options, d, 0, steps, own);
    const std::lock_guard lock(mutex);
    if (outcome.losses.empty()) outcome.losses = own.losses, outcome.norms = own.norms;
    CHECK(outcome.losses == own.losses);
    CHECK(outcome.norms == own.norms);
    for (const par::ShardedParameter& piece : run.named_parameters()) put_together::put(piece, outcome.parameters);
  });
  return outcome;
}

// Trains as a rank of `group`, and compares with what another layout has left. True if all is the same.
inline bool check_rank(const Group& group, int slices, const Layout& layout, const ModelOptions& options, int steps,
                       const Outcome& want) {
  bool is_same = false;
  on_mesh(group, slices, layout, options, [&](auto& run, Model& model, int d) {
    Outcome own;
    ls::optim::AdamW optimizer(run.parameters(), {.lr = 1e-2});
    train_steps(run, optimizer, layout, options, d, 0, steps, own);
    run.gathered([&] {
      for (const auto& [name, parameter] : model.named_parameters())
        own.parameters[name] = parameter->detach().reshape({-1}).template to_vector<float>();
    });
    is_same = own == want;
    CAPTURE(slices);
    CAPTURE(layout.describe());
    CHECK(own.losses == want.losses);
    CHECK(own.norms == want.norms);
    for (const auto& each : want.parameters) CHECK_MESSAGE(own.parameters.at(each.first) == each.second, each.first);
  });
  return is_same;
}

// All layouts have the bits of the first.
inline void check_same(int slices, const ModelOptions& options, const std::vector<Layout>& layouts) {
  std::optional<Outcome> want;
  for (const Layout& layout : layouts) {
    CAPTURE(slices);
    CAPTURE(layout.describe());
    const Outcome got = train(slices, layout, options);
    if (!want) want = got;
    CHECK(got.losses == want->losses);
    CHECK(got.norms == want->norms);
    for (const auto& each : want->parameters) CHECK_MESSAGE(got.parameters.at(each.first) == each.second, each.first);
    CHECK(got.parameters.size() == want->parameters.size());
  }
}

}  // namespace tensor_training
