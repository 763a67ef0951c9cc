// Training with a pipeline: a chain of modules, and a run of it on any number of ranks with any schedule.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/support/groups.h"

namespace pipeline_training {

namespace par = ls::parallel;
namespace nn = ls::nn;

constexpr std::int64_t kVocabulary = 19, kWidth = 16, kTime = 6;

struct ModelOptions {
  std::int64_t blocks = 6;
  double dropout = 0;
  bool norm = false;       // blocks 1 and 5 have a BatchNorm; every micro-batch updates that of block 5
  bool turned = false;     // block 0 returns a transposed view
  bool frozen = false;     // the whole of block 0, and one weight of block 2
  bool recompute = false;  // odd blocks
  bool unused = false;     // block 1 takes no gradient to its input
  bool bf16 = false, deferred = false;
  bool two_inputs = false;  // positions are an input
  bool tied = false;        // tokens and head; a weight of the blocks 1, 2 and 5
  par::Weighting weighting = par::Weighting::kEqual;
  std::int64_t samples = 16;
};

struct Embed : nn::Module {
  explicit Embed(const ModelOptions& options)
      : tokens(add<nn::Embedding>("tokens", kVocabulary, kWidth)), places(add<nn::Embedding>("places", kTime, kWidth)),
        dropout(add<nn::Dropout>("dropout", options.dropout)) {}
  ls::Tensor forward(const ls::Tensor& ids) const override {
    return dropout(tokens(ids) + places(ls::arange(0, ids.size(1))));
  }
  ls::Tensor forward_inputs(const std::vector<ls::Tensor>& in) const override {
    return in.size() == 1 ? forward(in[0]) : dropout(tokens(in[0]) + places(in[1]));
  }
  nn::Embedding &tokens, &places;
  nn::Dropout& dropout;
};

struct Block : nn::Module {
  Block(const ModelOptions& options, std::int64_t index)
      : options(options), index(index), norm1(add<nn::LayerNorm>("norm1", ls::Shape{kWidth})),
        attention(add<nn::MultiheadAttention>("attention", kWidth, 4,
                                              nn::MultiheadAttentionOptions{.dropout = options.dropout})),
        mlp(add<nn::Sequential>("mlp", nn::Linear(kWidth, 2 * kWidth), nn::GELU(), nn::Linear(2 * kWidth, kWidth),
                                nn::Dropout(options.dropout))) {
    const nn::BatchNormOptions of_norm{.all_micro_batches = index == 5};
    if (options.norm && index % 4 == 1) batch_norm = &add<nn::BatchNorm1d>("batch_norm", kWidth, of_norm);
  }
  ls::Tensor forward(const ls::Tensor& in) const override {
    const ls::Tensor x = options.turned && index == 1 ? in.transpose(1, 2) : in;
    if (!options.recompute || index % 2 == 0) return compute(x);
    return ls::autograd::checkpoint([this](const ls::Tensor& t) { return compute(t); }, x);
  }
  ls::Tensor compute(const ls::Tensor& x) const {
    const ls::Tensor n = norm1(options.unused && index == 1 ? x.detach() : x);
    const ls::Tensor y =
        (options.unused && index == 1 ? x.detach() : x) + attention.forward(n, n, n, {.is_causal = true});
    const ls::Tensor z = y + mlp(y);
    const ls::Tensor out = batch_norm ? (*batch_norm)(z.transpose(1, 2)).transpose(1, 2) : z;
    return options.turned && index == 0 ? out.transpose(1, 2) : out;
  }
  ModelOptions options;
  std::int64_t index;
  nn::LayerNorm& norm1;
  nn::MultiheadAttention& attention;
  nn::Sequential& mlp;
  nn::BatchNorm1d* batch_norm = nullptr;
};

struct Model : nn::Module {
  explicit Model(const ModelOptions& options)
      : embed(add<Embed>("embed", options)), blocks(add<nn::ModuleList>("blocks")),
        head(add<nn::Sequential>("head", nn::LayerNorm(ls::Shape{kWidth}), nn::Linear(kWidth, kVocabulary))) {
    for (std::int64_t i = 0; i < options.blocks; ++i) blocks.push_back(Block(options, i));
    if (options.tied) {
      dynamic_cast<nn::Linear&>(*head.children()[1]).weight = embed.tokens.weight;
      for (const std::int64_t b : {2, 5}) block(b).attention.out_proj.weight = block(1).attention.out_proj.weight;
    }
    if (!options.frozen) return;
    for (const nn::Parameter& each : blocks[0].parameters()) each.master().requires_grad_(false);
    blocks[2].parameters()[1].master().requires_grad_(false);
  }
  ls::Tensor forward(const ls::Tensor& ids) const override { return forward_inputs({ids}); }
  ls::Tensor forward_inputs(const std::vector<ls::Tensor>& inputs) const override {
    ls::Tensor x = embed(inputs);
    for (nn::Module& block : blocks) x = block(x);
    return head(x);
  }
  Block& block(std::int64_t b) { return dynamic_cast<Block&>(blocks[b]); }
  Embed& embed;
  nn::ModuleList& blocks;
  nn::Sequential& head;
};

struct Layout {
  int ranks = 1, micro_batches = 4, chunks = 1;
  par::Schedule schedule = par::Schedule::k1F1B;
  std::vector<std::string> split_before = {};
  std::string describe() const {
    return fmt::format("{} ranks, {} of {} micro-batches, {} chunks", ranks, par::name(schedule), micro_batches,
                       chunks);
  }
};

// The result of a run: of the whole model, on every rank.
struct Outcome {
  std::vector<double> losses, norms;
  double evaluation = 0;
  std::map<std::string, std::vector<float>> state;
};

inline bool is_finite(const Outcome& outcome) {
  return std::ranges::all_of(outcome.losses, [](double loss) { return std::isfinite(loss); });
}

constexpr int kSteps = LOCKSTEP_SLOWDOWN > 1 ? 2 : 3;

template <class Run>
ls::Tensor call(Run& run, const ModelOptions& options, const ls::Tensor& ids, bool evaluates) {
  const nn::CrossEntropyLoss criterion;
  const ls::Tensor x = ids.slice(1, 0, kTime), y = ids.slice(1, 1, kTime + 1);
  const ls::AutocastGuard autocast(options.bf16 ? std::optional(ls::kBFloat16) : std::nullopt);
  const auto of_logits = [&](const ls::Tensor& logits, const ls::Tensor& y) {
    return criterion(logits.flatten(0, 1), y.flatten());
  };
  if (options.two_inputs) {
    const std::vector<ls::Tensor> inputs = {x, ls::arange(0, kTime).expand({ids.size(0), kTime})};
    const auto loss = [&](const std::vector<ls::Tensor>& in, const ls::Tensor& y) {
      return of_logits(run.module()(in), y);
    };
    return evaluates ? run.evaluate(inputs, y, loss) : run.backward(inputs, y, loss);
  }
  const auto loss = [&](const ls::Tensor& x, const ls::Tensor& y) { return of_logits(run.module()(x), y); };
  return evaluates ? run.evaluate(x, y, loss) : run.backward(x, y, loss);
}

template <class Run>
Outcome train(Run& run, const ModelOptions& options) {
  Outcome outcome;
  ls::optim::AdamW optimizer(run.parameters(), {.lr = 1e-2});
  for (int step = 0; step < kSteps; ++step) {
    const std::int64_t samples = options.samples - (step == 1 ? 1 : 0);  // uneven micro-batches
    const ls::Tensor ids = ls::randint(0, kVocabulary, {samples, kTime + 1});
    optimizer.zero_grad();
    outcome.losses.push_back(call(run, options, ids, /*evaluates=*/false).template item<double>());
    outcome.norms.push_back(run.clip_grad_norm_(0.5));
    optimizer.step();
  }
  run.module().eval();
  const ls::Tensor ids = (ls::arange(options.samples * (kTime + 1)) * 5 % kVocabulary).reshape({-1, kTime + 1});
  outcome.evaluation = call(run, options, ids, /*evaluates=*/true).template item<double>();
  run.module().train();
  run.gathered([&] {
    for (const auto& [name, tensor] : run.module().state_dict())
      outcome.state[name] = tensor.to(ls::kFloat32).reshape({-1}).template to_vector<float>();
  });
  return outcome;
}

inline Outcome train_alone(const ModelOptions& options, int micro_batches) {
  ls::manual_seed(3);
  Model model(options);
  par::GradientAccumulation run(model, {.micro_batches = micro_batches, .weighting = options.weighting});
  return train(run, options);
}

// On one rank of the layout; a null group: the only one.
inline Outcome train_on_rank(const Group& group, const ModelOptions& options, const Layout& layout) {
  ls::manual_seed(3);
  std::optional<nn::DeferredInit> deferred;
  if (options.deferred) deferred.emplace();
  Model model(options);
  deferred.reset();
  const par::DeviceMesh mesh(group, {{"pp", layout.ranks}});
  par::Pipeline run(model, mesh["pp"],
                    {.chain = {"embed", "blocks.*", "head"},
                     .split_before = layout.split_before,
                     .schedule = layout.schedule,
                     .micro_batches_per_rank = layout.micro_batches,
                     .chunks_per_rank = layout.chunks,
                     .weighting = options.weighting});
  return train(run, options);
}

inline void check_equal(const Outcome& got, const Outcome& want) {
  CHECK(is_finite(want));
  CHECK(got.losses == want.losses);
  CHECK(got.norms == want.norms);
  CHECK(got.evaluation == want.evaluation);
  CHECK(got.state.size() == want.state.size());
  for (const auto& each : want.state) CHECK_MESSAGE(got.state.at(each.first) == each.second, each.first);
}

// All layouts have the bits of GradientAccumulation or, of a model whose chain modules share parameters, of one rank.
inline void check_same(const std::string& backend, const ModelOptions& options, const std::vector<Layout>& layouts) {
  std::map<int, Outcome> alone;  // by micro-batches
  for (const Layout& layout : layouts) {
    CAPTURE(layout.describe());
    if (!alone.contains(layout.micro_batches))
      alone[layout.micro_batches] =
          options.tied ? train_on_rank(nullptr, options, {.ranks = 1, .micro_batches = layout.micro_batches})
                       : train_alone(options, layout.micro_batches);
    const Outcome& want = alone[layout.micro_batches];
    if (layout.ranks == 1)
      check_equal(train_on_rank(nullptr, options, layout), want);
    else
      with_group(backend, layout.ranks,
                 [&](const Group& group) { check_equal(train_on_rank(group, options, layout), want); });
  }
}

}  // namespace pipeline_training
