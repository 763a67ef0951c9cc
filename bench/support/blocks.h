// Transformer blocks as the benchmarks of tensor and pipeline parallelism train them.
#pragma once

#include <lockstep/lockstep.h>

#include <cstdint>

namespace bench {

namespace ls = lockstep;
namespace nn = lockstep::nn;

constexpr std::int64_t kVocabulary = 64;

struct Block : nn::Module {
  std::int64_t head_dim;
  nn::LayerNorm& norm1;
  nn::Linear& query;
  nn::Linear& key;
  nn::Linear& value;
  nn::Linear& proj;
  nn::LayerNorm& norm2;
  nn::Linear& up;
  nn::Linear& down;
  Block(std::int64_t width, std::int64_t heads)
      : head_dim(width / heads), norm1(add<nn::LayerNorm>("norm1", ls::Shape{width})),
        query(add<nn::Linear>("query", width, width, nn::LinearOptions{.bias = false})),
        key(add<nn::Linear>("key", width, width, nn::LinearOptions{.bias = false})),
        value(add<nn::Linear>("value", width, width, nn::LinearOptions{.bias = false})),
        proj(add<nn::Linear>("proj", width, width)), norm2(add<nn::LayerNorm>("norm2", ls::Shape{width})),
        up(add<nn::Linear>("up", width, 4 * width, nn::LinearOptions{.bias = false})),
        down(add<nn::Linear>("down", 4 * width, width)) {}
  ls::Tensor forward(const ls::Tensor& x) const override {
    const auto heads = [&](const ls::Tensor& t) {
      return t.reshape({t.size(0), t.size(1), -1, head_dim}).transpose(1, 2);
    };
    const ls::Tensor y = norm1(x);
    const ls::Tensor attended =
        ls::scaled_dot_product_attention(heads(query(y)), heads(key(y)), heads(value(y)), {.is_causal = true});
    const ls::Tensor sum = x + proj(attended.transpose(1, 2).flatten(2));
    return sum + down(ls::gelu(up(norm2(sum))));
  }
};

struct Blocks : nn::Module {
  nn::Embedding& tokens;
  nn::ModuleList& blocks;
  Blocks(int layers, std::int64_t width, std::int64_t heads)
      : tokens(add<nn::Embedding>("tokens", kVocabulary, width)), blocks(add<nn::ModuleList>("blocks")) {
    for (int i = 0; i < layers; ++i) blocks.push_back(Block(width, heads));
  }
  ls::Tensor forward(const ls::Tensor& ids) const override {
    ls::Tensor x = tokens(ids);
    for (nn::Module& block : blocks) x = block(x);
    return x;
  }
};

}  // namespace bench
