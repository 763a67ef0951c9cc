// The engine: runs a graph backward. Not part of the public API; Tensor::backward and autograd::grad call it.
#pragma once

#include <span>
#include <vector>

#include "lockstep/autograd/history_internal.h"

namespace lockstep::autograd {

struct BackwardRequest {
  std::span<const Tensor> roots;      // run backward from these
  std::span<const Tensor> gradients;  // one for each root
  bool retain_graph = false;
  bool create_graph = false;
  // Empty: gradients are added to the leaves' grad(). Otherwise they are returned for these tensors instead.
  std::span<const Tensor> inputs = {};
};

// Returns the gradients of request.inputs; undefined for an input that no root depends on.
std::vector<Tensor> run_backward(const BackwardRequest& request);

}  // namespace lockstep::autograd
