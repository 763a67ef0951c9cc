// The engine: runs a graph backward. Not part of the public API; Tensor::backward and autograd::grad call it.
#pragma once

#include <span>
#include <vector>

#include "lockstep/autograd/history_internal.h"

namespace lockstep::autograd {

// A node that part I of a split backward (split_backward_internal.h) leaves to part W.
struct DeferredNode {
  Ref<Node> node;
  Tensors grads;            // of its outputs, complete; its hooks have run
  std::vector<bool> edges;  // whether part W computes the gradient of this input
};

// The results of part I of a split backward.
struct PartI {
  bool reaches_input = false;        // false if the root does not depend on the input; then no node has run
  std::vector<DeferredNode> rest{};  // the nodes that part W runs first
};

struct BackwardRequest {
  std::span<const Tensor> roots = {};      // run backward from these
  std::span<const Tensor> gradients = {};  // one for each root
  bool retain_graph = false;
  bool create_graph = false;
  // Empty: gradients are added to the leaves' grad(). Otherwise they are returned for these tensors instead.
  std::span<const Tensor> inputs = {};
  PartI* part_i = nullptr;              // not null: part I of a split backward, with one root and one input, a leaf
  std::span<DeferredNode> part_w = {};  // not empty: part W, without roots; moves `grads` away
};

// The gradient of the root of a backward: `gradient`, or 1 if that is undefined. Throws InvalidArgument if the root does
// not require grad, if `gradient` does not fit the root, or is undefined and the root has several elements.
Tensor root_gradient(const Tensor& root, const Tensor& gradient);

// Returns the gradients of request.inputs; undefined for an input that no root depends on.
std::vector<Tensor> run_backward(const BackwardRequest& request);

}  // namespace lockstep::autograd
