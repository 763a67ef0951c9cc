// A linear layer with a trained low-rank correction, which the tests put in the places of Linear layers.
#pragma once

#include <utility>

#include "support.h"

struct Lora : nn::Module {
  nn::Linear& base;
  nn::Parameter& down = add_parameter("down", numbers({2, base.weight->size(1)}, {}, 31));
  nn::Parameter& up = add_parameter("up", numbers({base.weight->size(0), 2}, {}, 32) * 0.1);
  explicit Lora(nn::Linear&& of) : base(add("base", std::move(of))) {}
  ls::Tensor forward(const ls::Tensor& x) const override {
    return base(x) + ls::matmul(ls::matmul(x, down->t()), up->t());
  }
};
