// A backward in two parts, for the pipeline schedule zb1p: part I computes the gradient of a stage's input, which the
// previous stage waits for. Part W computes the gradients of all other leaves, the parameters. Part W may run much
// later, after the forwards and both parts of other micro-batches.
//
// A node that leads to the input and to other leaves runs in both parts, with complementary needs, and keeps its saved
// tensors and its gradients until part W. All other nodes run once: those that lead to the input alone in part I, which
// releases them, the others in part W.
//
// All gradients have the bits of a joint backward: each comes from the same call of a kernel, and contributions are
// added in the same order, newest first. Part W decides which contributions are written to bucket views, and runs the
// hooks of the leaves.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/autograd/engine_internal.h"

namespace lockstep::autograd {

class SplitBackward {
 public:
  // Part I: runs backward from `root` to the leaf `input`. Hooks on tensors run once, those on results of operations in
  // part I if the result depends on the input. `gradient` is that of the root; undefined: 1, for a root with one
  // element. Its elements must not change before part W.
  // If `input` is undefined, or the root does not depend on it, part I does nothing and part W is the whole backward.
  // Throws InvalidArgument as Tensor::backward does, if `input` is not a leaf that requires grad, and for a checkpoint
  // that leads to the input and to parameters: both parts would recompute the function.
  SplitBackward(const Tensor& root, const Tensor& gradient, const Tensor& input);

  // Returns the gradient of the input, once; undefined if there is none. It is not copied: it may have any strides, and
  // share memory with gradients that part W needs, so it must not be changed in place before part W. The input's grad()
  // does not change, and its leaf hooks do not run.
  Tensor take_input_gradient() { return std::move(input_gradient_); }

  // Part W: accumulates the gradients of all leaves but the input, and releases the graph. Throws InvalidArgument if it
  // has already run.
  void run();

  // Bytes of the gradients that are kept for part W. Memory that several of them share counts once; saved tensors do
  // not count.
  std::int64_t gradient_bytes() const;

 private:
  Tensor input_gradient_;
  std::vector<DeferredNode> nodes_;
  Tensor root_, gradient_;  // defined if part W is the whole backward
  bool has_run_ = false;
};

}  // namespace lockstep::autograd
