#include "lockstep/autograd/graph_cut_internal.h"

#include <algorithm>
#include <unordered_set>

#include "lockstep/autograd/history_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::autograd {
namespace {

// A tensor with the given shape, dtype and device, but memory for only one element.
Tensor stand_in(const Shape& shape, DType dtype, Device device) {
  return raw::expand(raw::empty(Shape(), {.dtype = dtype, .device = device}), shape);
}

Tensor stand_in(const Edge& edge) {
  if (edge.leaf.defined()) return stand_in(edge.leaf.shape(), edge.leaf.dtype(), edge.leaf.device());
  const OutputInfo& out = edge.node->outputs[edge.output];
  return stand_in(out.shape, out.dtype, out.device);
}

}  // namespace

CutGraph cut_graph(std::span<const Tensor> results, std::uint64_t before, std::span<const Tensor> leaves) {
  const EnableGradGuard recording;
  CutGraph graph;
  std::vector<Node*> unexplored;
  for (const Tensor& result : results) {
    graph.roots.push_back(record("result", stand_in(result.shape(), result.dtype(), result.device()), {result},
                                 [](const Tensor& grad, const Needs&) { return Gradients{grad}; }));
    unexplored.push_back(history(graph.roots.back())->node.get());
  }
  std::unordered_set<const void*> seen;  // visited nodes, and leaves to keep
  for (const Tensor& leaf : leaves) seen.insert(leaf.ref().get());
  while (!unexplored.empty()) {
    Node* const node = unexplored.back();
    unexplored.pop_back();
    for (Edge& edge : node->edges) {
      if (edge.node && edge.node->sequence > before) {
        if (seen.insert(edge.node.get()).second) unexplored.push_back(edge.node.get());
      } else if (edge.node || (edge.leaf.defined() && !seen.contains(edge.leaf.ref().get()))) {
        const auto leads_there = [&edge](const Cut& cut) {
          return cut.outside.node == edge.node && cut.outside.output == edge.output &&
                 cut.outside.leaf.ref() == edge.leaf.ref();
        };
        auto cut = std::ranges::find_if(graph.cuts, leads_there);
        if (cut == graph.cuts.end()) {
          cut = graph.cuts.insert(cut, {.outside = edge, .inside = stand_in(edge)});
          cut->inside.requires_grad_();
          seen.insert(cut->inside.ref().get());
        }
        edge = {.node = {}, .leaf = cut->inside};
      }
    }
  }
  return graph;
}

}  // namespace lockstep::autograd
