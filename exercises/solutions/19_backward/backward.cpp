// Two passes: one counts the edges into each node, the other runs a node when contributions have come along all of them.
#include <map>
#include <unordered_map>

#include "adapters.h"

namespace exercises {
namespace {

struct State {
  int missing = 0;  // contributions that have not been added yet
  double gradient = 0;
};
using States = std::unordered_map<GraphNode*, State>;

States count_edges(GraphNode& loss) {
  States states;
  states[&loss];
  std::vector<GraphNode*> unexplored = {&loss};
  while (!unexplored.empty()) {
    GraphNode* const node = unexplored.back();
    unexplored.pop_back();
    for (GraphNode* const input : node->inputs()) {
      if (!input) continue;
      if (!states.contains(input)) unexplored.push_back(input);
      ++states[input].missing;
    }
  }
  return states;
}

}  // namespace

void run_backward(GraphNode& loss) {
  States states = count_edges(loss);
  states[&loss].gradient = 1;
  std::map<int, GraphNode*, std::greater<>> ready = {{loss.number(), &loss}};
  while (!ready.empty()) {
    GraphNode* const node = ready.begin()->second;
    ready.erase(ready.begin());
    const std::vector<double> gradients = node->backward(states[node].gradient);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      GraphNode* const input = node->inputs()[i];
      if (!input) continue;
      State& state = states[input];
      state.gradient += gradients[i];
      if (--state.missing > 0) continue;
      if (input->inputs().empty())
        input->backward(state.gradient);
      else
        ready[input->number()] = input;
    }
  }
}

}  // namespace exercises
