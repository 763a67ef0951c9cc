// A GPT in nanoGPT's form (https://github.com/karpathy/nanoGPT): its model, loss and groups of parameters.
#pragma once

#include <lockstep/lockstep.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "support/options.h"

namespace samples {

namespace ls = lockstep;
namespace nn = lockstep::nn;

// The keys and values of the characters that an Attention has seen: (batch, heads, time, head_dim), undefined at first.
struct KeysAndValues {
  ls::Tensor keys, values;
};

// Each character attends to itself and those before it. The numbers of heads and columns are those of the tensors: with
// tensor parallelism, a rank has some of them.
struct Attention : nn::Module {
  std::int64_t head_dim;
  double dropout_p;
  nn::Linear& qkv;
  nn::Linear& proj;
  nn::Dropout& dropout;
  KeysAndValues* past = nullptr;  // while text is generated: of the characters before x; see KeyValueCache
  explicit Attention(const GptOptions& o)
      : head_dim(o.width / o.heads), dropout_p(o.dropout),
        qkv(add<nn::Linear>("qkv", o.width, 3 * o.width, nn::LinearOptions{.bias = false})),
        proj(add<nn::Linear>("proj", o.width, o.width, nn::LinearOptions{.bias = false})),
        dropout(add<nn::Dropout>("dropout", o.dropout)) {}
  ls::Tensor forward(const ls::Tensor& x) const override {  // (batch, time, width)
    const std::int64_t batch = x.size(0), time = x.size(1);
    const auto heads = [&](const ls::Tensor& t) { return t.reshape({batch, time, -1, head_dim}).transpose(1, 2); };
    const std::vector<ls::Tensor> parts = ls::chunk(qkv(x), 3, -1);
    KeysAndValues now = {heads(parts[1]), heads(parts[2])};
    const bool continues = past && past->keys.defined();  // then x is one character, which attends to all before it
    if (continues) now = {ls::cat({past->keys, now.keys}, 2), ls::cat({past->values, now.values}, 2)};
    if (past) *past = now;
    const ls::Tensor y = ls::scaled_dot_product_attention(
        heads(parts[0]), now.keys, now.values, {.dropout_p = is_training() ? dropout_p : 0, .is_causal = !continues});
    return dropout(proj(y.transpose(1, 2).reshape({batch, time, -1})));
  }
};

struct Block : nn::Module {
  bool recompute;
  nn::LayerNorm& norm1;
  Attention& attention;
  nn::LayerNorm& norm2;
  nn::Linear& fc;
  nn::Linear& proj;
  nn::Dropout& dropout;
  explicit Block(const GptOptions& o)
      : recompute(o.recompute),
        norm1(add<nn::LayerNorm>("norm1", ls::Shape{o.width}, nn::LayerNormOptions{.bias = false})),
        attention(add<Attention>("attention", o)),
        norm2(add<nn::LayerNorm>("norm2", ls::Shape{o.width}, nn::LayerNormOptions{.bias = false})),
        fc(add<nn::Linear>("fc", o.width, 4 * o.width, nn::LinearOptions{.bias = false})),
        proj(add<nn::Linear>("proj", 4 * o.width, o.width, nn::LinearOptions{.bias = false})),
        dropout(add<nn::Dropout>("dropout", o.dropout)) {}
  ls::Tensor forward(const ls::Tensor& x) const override {
    const auto compute = [this](const ls::Tensor& x) {
      const ls::Tensor y = x + attention(norm1(x));
      return y + dropout(proj(ls::gelu(fc(norm2(y)))));
    };
    return recompute ? ls::autograd::checkpoint(compute, x) : compute(x);
  }
};

// The vectors of the characters and of their positions.
struct Embed : nn::Module {
  nn::Embedding& tokens;
  nn::Embedding& positions;
  nn::Dropout& dropout;
  Embed(std::int64_t vocabulary, const GptOptions& o)
      : tokens(add<nn::Embedding>("tokens", vocabulary, o.width)),
        positions(add<nn::Embedding>("positions", o.context, o.width)),
        dropout(add<nn::Dropout>("dropout", o.dropout)) {}
  ls::Tensor forward(const ls::Tensor& ids) const override {  // (batch, time) i64 -> (batch, time, width)
    return forward_inputs({ids, ls::arange(ids.size(1), {.device = ids.device()})});
  }
  // {ids, positions}, for ranks that have a part of each text.
  ls::Tensor forward_inputs(const std::vector<ls::Tensor>& in) const override {
    return in.size() == 1 ? forward(in[0]) : dropout(tokens(in[0]) + positions(in[1]));
  }
};

// The logits of the next character.
struct Head : nn::Module {
  nn::LayerNorm& norm;
  nn::Linear& linear;
  Head(std::int64_t vocabulary, const GptOptions& o)
      : norm(add<nn::LayerNorm>("norm", ls::Shape{o.width}, nn::LayerNormOptions{.bias = false})),
        linear(add<nn::Linear>("linear", o.width, vocabulary, nn::LinearOptions{.bias = false})) {}
  ls::Tensor forward(const ls::Tensor& x) const override { return linear(norm(x)); }
};

// A chain: each of embed, the blocks and head gets the result of the module before it, and nothing else.
struct Gpt : nn::Module {
  Embed& embed;
  nn::ModuleList& blocks;
  Head& head;
  Gpt(std::int64_t vocabulary, const GptOptions& o)
      : embed(add<Embed>("embed", vocabulary, o)), blocks(add<nn::ModuleList>("blocks")),
        head(add<Head>("head", vocabulary, o)) {
    if (!o.untied) head.linear.weight = embed.tokens.weight;  // a character has one vector, as input and as output
    for (std::int64_t i = 0; i < o.layers; ++i) blocks.push_back(Block(o));
    // Scales the initial residual projections by 1 / sqrt(2 layers), so that x does not grow with the number of layers.
    for (const auto& [name, parameter] : named_parameters()) {
      const double narrower = name.ends_with("proj.weight") ? std::sqrt(2.0 * static_cast<double>(o.layers)) : 1;
      if (parameter->dim() > 1) nn::init::normal_(parameter, 0, 0.02 / narrower);
    }
  }
  ls::Tensor forward(const ls::Tensor& ids) const override {  // (batch, time) i64 -> (batch, time, vocabulary)
    return forward_inputs({ids});
  }
  // {ids, positions}, as of Embed.
  ls::Tensor forward_inputs(const std::vector<ls::Tensor>& in) const override {
    ls::Tensor x = embed(in);
    for (nn::Module& block : blocks) x = block(x);
    return head(x);
  }
};

// Predicts the characters of one text, one after another, without computing those before again: each layer keeps its keys
// and values. The model is in eval mode, and computes nothing else meanwhile.
class KeyValueCache {
 public:
  explicit KeyValueCache(Gpt& model) : model_(model), layers_(static_cast<std::size_t>(model.blocks.size())) {
    point_to(layers_.data());
  }
  ~KeyValueCache() { point_to(nullptr); }
  KeyValueCache(const KeyValueCache&) = delete;
  KeyValueCache& operator=(const KeyValueCache&) = delete;

  // The logits (1, vocabulary) of the character after `ids` (1, time): a text's first characters, or one further character.
  ls::Tensor next(const ls::Tensor& ids) {
    const std::int64_t begin = std::exchange(length_, length_ + ids.size(1));
    const ls::Tensor positions = ls::arange(begin, length_, {.device = ids.device()});
    return model_({ids, positions}).select(1, -1);
  }
  void clear() {
    for (KeysAndValues& layer : layers_) layer = {};
    length_ = 0;
  }

 private:
  void point_to(KeysAndValues* layer) {
    for (nn::Module& block : model_.blocks) static_cast<Block&>(block).attention.past = layer ? layer++ : nullptr;
  }

  Gpt& model_;
  std::vector<KeysAndValues> layers_;
  std::int64_t length_ = 0;  // of the text so far
};

// The chain that a pipeline cuts into stages.
inline std::vector<std::string> chain_of_gpt() { return {"embed", "blocks.*", "head"}; }

// The layer of the logits.
inline constexpr const char* kLogits = "head.linear";

// Which layers tensor parallelism cuts, and how.
inline ls::parallel::ParallelPlan tensor_plan(const GptOptions& o) {
  using namespace ls::parallel;
  const auto head_dim = static_cast<int>(o.width / o.heads);
  return {{"embed.tokens", VocabParallel{}},
          {"blocks.*.attention.qkv", ColwiseParallel{.parts = 3, .multiple_of = head_dim}},
          {"blocks.*.attention.proj", RowwiseParallel{}},
          {"blocks.*.fc", ColwiseParallel{}},
          {"blocks.*.proj", RowwiseParallel{}},
          {kLogits, VocabParallel{.gather_output = false}}};
}

// Floating-point operations of a training step for one character: of the matrix products in forward and backward, without
// those that --recompute repeats (Chowdhery et al., PaLM, 2022, appendix B).
inline double training_operations(std::int64_t vocabulary, const GptOptions& o) {
  const std::int64_t weights = 12 * o.layers * o.width * o.width + vocabulary * o.width;
  return static_cast<double>(6 * weights + 12 * o.layers * o.width * o.context);
}

inline ls::Tensor next_character_loss(const ls::Tensor& logits, const ls::Tensor& next) {
  return nn::cross_entropy(logits.flatten(0, 1), next.flatten());
}

// Weight decay applies to matrices, not to the scales of the norms.
inline std::vector<ls::optim::AdamWGroup> groups_of(const std::vector<ls::parallel::ShardedParameter>& parameters) {
  std::vector<ls::optim::AdamWGroup> groups(2);
  for (const ls::parallel::ShardedParameter& each : parameters)
    groups[each.shape.dim() > 1 ? 0 : 1].params.push_back(each.parameter);
  groups[1].weight_decay = 0;
  return groups;
}

inline std::vector<ls::optim::AdamWGroup> groups_of(const Gpt& model) {
  std::vector<ls::parallel::ShardedParameter> parameters;
  for (const auto& [name, parameter] : model.named_parameters())
    parameters.push_back({.name = name, .parameter = parameter, .shape = parameter->shape()});
  return groups_of(parameters);
}

}  // namespace samples
