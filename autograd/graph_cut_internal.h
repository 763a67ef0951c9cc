// Cuts a graph off from the graph that it was built on, so that each can run backward on a thread of its own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/autograd/node.h"

namespace lockstep::autograd {

struct Cut {
  Edge outside;   // the original target of the gradients
  Tensor inside;  // the leaf that receives them instead
};

struct CutGraph {
  std::vector<Tensor> roots;  // replace the results: run backward from them
  std::vector<Cut> cuts;
};

// Redirects edges of the graph behind `results` to new leaves: edges to a node with a sequence number of at most
// `before` (a value of newest_sequence()), and edges to a leaf that is not in `leaves`. No other thread may use the
// newer nodes meanwhile. The order of the cuts depends on the graph alone. The results must require grad. Roots
// and new leaves hold a single element, expanded.
CutGraph cut_graph(std::span<const Tensor> results, std::uint64_t before, std::span<const Tensor> leaves);

}  // namespace lockstep::autograd
