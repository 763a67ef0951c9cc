// A small model for join and communication hooks: integer-valued inputs make sums exact.
#pragma once

#include "tests/support/groups.h"

// y = x w + b, and a buffer that counts forwards.
struct Line : ls::nn::Module {
  ls::nn::Linear& fc = add<ls::nn::Linear>("fc", 3, 2);
  ls::nn::Buffer& seen = add_buffer("seen", ls::zeros({1}));
  explicit Line(double value = 0) {
    const ls::NoGradGuard no_grad;
    for (const ls::nn::Parameter& p : parameters()) p->copy_(ls::full(p->shape(), value));
  }
  ls::Tensor forward(const ls::Tensor& x) const override {
    const ls::NoGradGuard no_grad;
    seen->add_(ls::ones({1}));
    const ls::EnableGradGuard grad;
    return fc(x);
  }
};
