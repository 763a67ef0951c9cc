// Compares a split backward (autograd/split_backward_internal.h) with a joint one.
#pragma once

#include <functional>

#include "lockstep/autograd/split_backward_internal.h"
#include "tests/support/testing.h"

namespace split_check {

using Tensors = std::vector<ls::Tensor>;

inline Tensors gradients_of(const Tensors& leaves) {
  Tensors gradients;
  for (const ls::Tensor& leaf : leaves) gradients.push_back(leaf.grad());
  return gradients;
}

inline Tensors fresh_leaves(const Tensors& leaves) {
  Tensors copies;
  for (const ls::Tensor& leaf : leaves) copies.push_back(leaf.detach().clone().requires_grad_(leaf.requires_grad()));
  return copies;
}

// Fails unless both are undefined, or have the same bits.
inline void check_same(const Tensors& have, const Tensors& want) {
  REQUIRE(have.size() == want.size());
  for (std::size_t i = 0; i < have.size(); ++i) {
    CAPTURE(i);
    CHECK(have[i].defined() == want[i].defined());
    if (have[i].defined() && want[i].defined()) CHECK(same_bits(have[i], want[i]));
  }
}

// The gradients of the leaves of function(leaves), of which leaf 0 is the input: by a joint backward and a split one.
inline void check(const std::function<ls::Tensor(const Tensors&)>& function, const Tensors& leaves) {
  Tensors gradients[2];
  ls::Tensor as_made;  // the gradient of the input before it becomes contiguous
  for (const bool is_split : {false, true}) {
    const Tensors own = fresh_leaves(leaves);
    ls::manual_seed(1);
    const ls::Tensor y = function(own), upstream = numbers(y.shape(), {.dtype = y.dtype()}, 7);
    if (is_split) {
      ls::autograd::SplitBackward backward(y, upstream, own[0]);
      for (const ls::Tensor& leaf : own) CHECK(!leaf.grad().defined());
      backward.run();
      gradients[1] = gradients_of(own);
      gradients[1][0] = backward.take_input_gradient();
    } else {
      own[0].register_hook([&](const ls::Tensor& gradient) { return as_made = gradient.detach(), ls::Tensor(); });
      y.backward(upstream);
      gradients[0] = gradients_of(own);
    }
  }
  CHECK(as_made.strides() == gradients[1][0].strides());
  check_same(gradients[1], gradients[0]);
}

// The same for every way to divide the operands of `function` in those that depend on the input and parameters.
inline void check_operands(const std::function<ls::Tensor(const Tensors&)>& function, const Tensors& operands) {
  const unsigned all = 1u << operands.size();
  for (unsigned dependent = 1; dependent < all; ++dependent) {
    CAPTURE(dependent);
    Tensors leaves = {ls::full({}, 1.25, {.dtype = operands[0].dtype(), .requires_grad = true})};
    leaves.insert(leaves.end(), operands.begin(), operands.end());
    check(
        [&](const Tensors& own) {
          Tensors in;
          for (std::size_t i = 1; i < own.size(); ++i)
            in.push_back(dependent >> (i - 1) & 1u ? own[i] * own[0] : own[i]);
          return function(in);
        },
        leaves);
  }
}

}  // namespace split_check
