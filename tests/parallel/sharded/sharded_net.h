// A small model for tests of ShardedDataParallel on threads.
#pragma once

#include <utility>

#include "tests/support/groups.h"

namespace sharded_net {

struct Block : ls::nn::Module {
  ls::nn::Linear& up = add<ls::nn::Linear>("up", 5, 9);
  ls::nn::Linear& down = add<ls::nn::Linear>("down", 9, 5);
  ls::Tensor forward(const ls::Tensor& x) const override { return x + down(ls::gelu(up(x))); }
};

struct Net : ls::nn::Module {
  ls::nn::ModuleList& blocks = add<ls::nn::ModuleList>("blocks");
  ls::nn::Linear& head = add<ls::nn::Linear>("head", 5, 1);
  Net() {
    for (int i = 0; i < 4; ++i) blocks.push_back(Block());
  }
  ls::Tensor forward(const ls::Tensor& x) const override {
    ls::Tensor y = x;
    for (ls::nn::Module& block : blocks) y = block(y);
    return head(y);
  }
};

// The same values in every thread, without the process's random numbers.
inline void set_values(Net& net) {
  const ls::NoGradGuard no_grad;
  double start = 0;
  for (const ls::nn::Parameter& parameter : net.parameters()) {
    const std::int64_t count = parameter->numel();
    parameter->copy_(ls::sin(ls::arange(start, start + static_cast<double>(count))).reshape(parameter->shape()) * 0.3);
    start += static_cast<double>(count);
  }
}

// Rows [first, first + count) of the data.
inline std::pair<ls::Tensor, ls::Tensor> rows(std::int64_t first, std::int64_t count) {
  const ls::Tensor x = ls::cos(ls::arange(0.0, 16.0 * 5)).reshape({16, 5});
  return {x.narrow(0, first, count), ls::sum(x, {1}, true).narrow(0, first, count)};
}

}  // namespace sharded_net
