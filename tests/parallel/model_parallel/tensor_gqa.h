// A transformer with grouped-query attention for tests of tensor parallelism: fewer heads of keys and values, and norms
// of the heads.
#pragma once

#include "tests/parallel/model_parallel/tensor_subject.h"

namespace tensor_training {

enum class HeadNorm {
  kNone,
  kBeforeTranspose,  // of (batch, time, heads, dim)
  kAfterTranspose,   // of (batch, heads, time, dim)
};

struct GqaOptions {
  std::int64_t heads = 8, kv_heads = 2, dim = 4;
  int repeat = 1;
  HeadNorm norm = HeadNorm::kNone;
  bool recompute_norm = false;
  bool rms = false, bias = true, frozen = false, recompute = false, bf16 = false, deferred = false;
  double dropout = 0;
  std::int64_t width() const { return heads * dim; }
};

struct GqaAttention : nn::Module {
  explicit GqaAttention(const GqaOptions& options) : options(options) {
    const std::int64_t width = options.width(), kv_width = options.kv_heads * options.dim;
    const nn::LinearOptions linear{.bias = options.bias};
    query = &add<nn::Linear>("query", width, width, linear);
    key = &add<nn::Linear>("key", width, kv_width, linear);
    value = &add<nn::Linear>("value", width, kv_width, linear);
    proj = &add<nn::Linear>("proj", width, width, linear);
    if (options.norm == HeadNorm::kNone) return;
    for (auto& [name, norm] : {std::pair("q_norm", &q_norm), std::pair("k_norm", &k_norm)}) {
      if (options.rms)
        *norm = &add<nn::RMSNorm>(name, ls::Shape{options.dim});
      else
        *norm = &add<nn::LayerNorm>(name, ls::Shape{options.dim});
    }
  }
  ls::Tensor forward(const ls::Tensor& x) const override {
    const auto normed = [&](const nn::Module& norm, const ls::Tensor& t) {
      return options.recompute_norm ? ls::autograd::checkpoint([&norm](const ls::Tensor& in) { return norm(in); }, t)
                                    : norm(t);
    };
    const auto heads = [&](const nn::Linear& linear, const nn::Module* norm) {
      ls::Tensor t = linear(x);
      t = t.reshape({t.size(0), t.size(1), -1, options.dim});
      if (norm && options.norm == HeadNorm::kBeforeTranspose) t = normed(*norm, t);
      t = t.transpose(1, 2);
      return norm && options.norm == HeadNorm::kAfterTranspose ? normed(*norm, t) : t;
    };
    const ls::Tensor q = heads(*query, q_norm), k = heads(*key, k_norm), v = heads(*value, nullptr);
    const ls::Tensor y = ls::scaled_dot_product_attention(
        q, k, v, {.dropout_p = is_training() ? options.dropout : 0, .is_causal = true, .enable_gqa = true});
    return (*proj)(y.transpose(1, 2).flatten(2));
  }

  GqaOptions options;
  nn::Linear *query, *key, *value, *proj;
  nn::Module *q_norm = nullptr, *k_norm = nullptr;
};

struct GqaModel : nn::Module {
  explicit GqaModel(const GqaOptions& options)
      : options(options), tokens(add<nn::Embedding>("tokens", kVocabulary, options.width())),
        blocks(add<nn::ModuleList>("blocks")), head(add<nn::Linear>("head", options.width(), kVocabulary)) {
    for (int i = 0; i < 2; ++i) blocks.push_back(GqaAttention(options));
    if (options.frozen) dynamic_cast<GqaAttention&>(blocks[0]).key->weight->requires_grad_(false);
  }
  ls::Tensor forward(const ls::Tensor& ids) const override {
    ls::Tensor x = tokens(ids);
    for (nn::Module& block : blocks) {
      const auto run = [&block](const ls::Tensor& t) { return t + block(t); };
      x = options.recompute ? ls::autograd::checkpoint(run, x) : run(x);
    }
    return head(x);
  }

  GqaOptions options;
  nn::Embedding& tokens;
  nn::ModuleList& blocks;
  nn::Linear& head;
};

inline par::ParallelPlan gqa_plan(const GqaOptions& options) {
  const auto dim = static_cast<int>(options.dim);
  par::ParallelPlan plan = {{"blocks.*.query", par::ColwiseParallel{.multiple_of = dim}},
                            {"blocks.*.key", par::ColwiseParallel{.multiple_of = dim, .repeat = options.repeat}},
                            {"blocks.*.value", par::ColwiseParallel{.repeat = options.repeat}},
                            {"blocks.*.proj", par::RowwiseParallel{}}};
  if (options.norm != HeadNorm::kNone) plan.emplace_back("blocks.*.*_norm", par::SequenceParallel{});
  return plan;
}

inline Subject gqa_subject(const GqaOptions& options) {
  return {.make = [options] { return std::make_unique<GqaModel>(options); },
          .plan = gqa_plan(options),
          .bf16 = options.bf16,
          .deferred = options.deferred};
}

}  // namespace tensor_training
