// Runs a node for each path from the loss.
#include "adapters.h"

namespace exercises {
namespace {

void run_node(GraphNode& node, double gradient) {
  const std::vector<double> gradients = node.backward(gradient);
  for (std::size_t i = 0; i < gradients.size(); ++i)
    if (node.inputs()[i]) run_node(*node.inputs()[i], gradients[i]);
}

}  // namespace

void run_backward(GraphNode& loss) { run_node(loss, 1); }

}  // namespace exercises
