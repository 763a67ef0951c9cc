// Cutting a graph where it began, so that it can run backward by itself: on another thread than what it was built upon.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/autograd/node.h"

namespace lockstep::autograd {

struct Cut {
  Edge outside;   // where gradients would have gone
  Tensor inside;  // the leaf that they reach instead
};

struct CutGraph {
  Tensor root;  // stands for the result: run backward from it
  std::vector<Cut> cuts;
};

// Makes the graph behind `result` end at leaves of its own: what leads to a node that was there when newest_sequence()
// gave `before`, or to a leaf that is not among `leaves`, leads to a fresh leaf instead. Nobody else may be using the
// nodes that were recorded since. Cuts come in an order that follows from the graph alone. `result` requires grad.
// Roots and fresh leaves keep no elements.
CutGraph cut_graph(const Tensor& result, std::uint64_t before, std::span<const Tensor> leaves);

}  // namespace lockstep::autograd
