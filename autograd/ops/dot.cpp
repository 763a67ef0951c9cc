#include <map>

#include "lockstep/autograd/autograd.h"
#include "lockstep/autograd/history_internal.h"
#include "lockstep/base/check_internal.h"

namespace lockstep::autograd {

std::string to_dot(const Tensor& t) {
  std::string text = "digraph lockstep {\n  rankdir=BT;\n  node [shape=box, fontname=monospace];\n";
  std::map<const void*, int> numbers;
  std::vector<const Node*> open;
  const auto number = [&](const Node* node, const Tensor& leaf) {
    const void* key = node ? static_cast<const void*>(node) : leaf.ref().get();
    const auto [entry, added] = numbers.try_emplace(key, static_cast<int>(numbers.size()));
    if (!added) return entry->second;
    if (node) {
      text +=
          fmt::format("  n{} [label=\"{}\\n{}\"];\n", entry->second, node->name, node->outputs[0].shape.to_string());
      open.push_back(node);
    } else {
      text += fmt::format("  n{} [label=\"{}\", style=rounded];\n", entry->second, describe(leaf));
    }
    return entry->second;
  };
  const History* own = history(t);
  number(own ? own->node.get() : nullptr, t);
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    for (const Edge& edge : node->edges) {
      if (edge.wanted()) text += fmt::format("  n{} -> n{};\n", number(edge.node.get(), edge.leaf), numbers[node]);
    }
  }
  return text + "}\n";
}

}  // namespace lockstep::autograd
