// Exercise 19: gradients, which whole numbers make exact; each node once; the order of the calls.
#include <algorithm>

#include "harness.h"

namespace grader {
namespace {

using exercises::GraphNode;

std::string list(const std::vector<int>& numbers) {
  std::string all;
  for (const int number : numbers) all += (all.empty() ? "" : ", ") + std::to_string(number);
  return all;
}

class Graph;

// A node whose result is the sum of its inputs, each multiplied by a factor.
class Node final : public GraphNode {
 public:
  Node(Graph& graph, int number, std::vector<GraphNode*> inputs, std::vector<double> factors)
      : graph_(graph), number_(number), inputs_(std::move(inputs)), factors_(std::move(factors)) {}
  int number() const override { return number_; }
  const std::vector<GraphNode*>& inputs() const override { return inputs_; }
  std::vector<double> backward(double gradient) override;
  const std::vector<double>& factors() const { return factors_; }
  bool is_leaf() const { return inputs_.empty(); }
  std::string name() const { return text(is_leaf() ? "leaf " : "node ", number_); }

 private:
  Graph& graph_;
  int number_;
  std::vector<GraphNode*> inputs_;
  std::vector<double> factors_;
};

// A graph with its calls of backward, checked as they arrive: each node once, after all nodes that use its result.
class Graph {
 public:
  Node* add(std::vector<GraphNode*> inputs = {}, std::vector<double> factors = {}) {
    nodes_.push_back(
        std::make_unique<Node>(*this, static_cast<int>(nodes_.size()), std::move(inputs), std::move(factors)));
    return nodes_.back().get();
  }
  const Node& node(int number) const { return *nodes_[static_cast<std::size_t>(number)]; }

  // Runs the student's backward from the newest node. The functions below are about this run.
  void run() {
    state_.assign(nodes_.size(), {});
    calls_.clear();
    state_.back() = {.gradient = 1, .is_reached = true};
    for (std::size_t n = nodes_.size(); n-- > 0;) {
      if (!state_[n].is_reached) continue;
      for (std::size_t i = 0; i < nodes_[n]->inputs().size(); ++i) {
        if (!nodes_[n]->inputs()[i]) continue;
        State& input = state_of(*nodes_[n]->inputs()[i]);
        input.is_reached = true;
        input.gradient += nodes_[n]->factors()[i] * state_[n].gradient;
        input.users.push_back(static_cast<int>(n));
      }
    }
    incomplete_.clear();
    exercises::run_backward(*nodes_.back());
    require(incomplete_.empty(), incomplete_);
    for (const auto& node : nodes_) {
      const State& state = state_of(*node);
      require(!state.is_reached || state.has_run, node->name(), " has not run, although nodes ", list(state.users),
              " use its result");
    }
  }
  double gradient(const Node& leaf) { return state_of(leaf).gradient; }
  const std::vector<int>& calls() const { return calls_; }  // numbers of nodes
  // The numbers of the nodes that use the result of node `number`.
  const std::vector<int>& users(int number) const { return state_[static_cast<std::size_t>(number)].users; }

  void record(const Node& node, double gradient) {
    State& state = state_of(node);
    require(!state.has_run, node.name(), " runs a second time, with the gradient ", gradient,
            ": each node runs once, with the sum of its contributions");
    state.has_run = true;
    calls_.push_back(node.number());
    for (const int user : state.users)
      require(state_[static_cast<std::size_t>(user)].has_run || !incomplete_.empty(), node.name(), " runs before node ",
              user, ", which uses its result: its gradient is not complete");
    // Reported at the end, since a second call of the node says more.
    if (gradient != state.gradient && incomplete_.empty())
      incomplete_ = text(node.name(), " runs with the gradient ", gradient, ", expected ", state.gradient,
                         ": the sum of the contributions of nodes ", list(state.users));
  }

 private:
  struct State {
    double gradient = 0;  // the whole one
    bool is_reached = false, has_run = false;
    std::vector<int> users = {};
  };
  State& state_of(const GraphNode& node) { return state_[static_cast<std::size_t>(node.number())]; }

  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<State> state_;
  std::vector<int> calls_;
  std::string incomplete_;  // the first call with another gradient than the whole one; empty if there was none
};

std::vector<double> Node::backward(double gradient) {
  graph_.record(*this, gradient);
  std::vector<double> gradients = factors_;
  for (double& each : gradients) each *= gradient;
  return gradients;
}

struct Numbers {
  double w = 3, x = 2, b = 1;
};

Numbers numbers() {
  if (seed_of() == 0) return {};
  Dice dice(seed_of());
  return {.w = 2.0 + dice.roll(7), .x = 2.0 + dice.roll(7), .b = 1.0 + dice.roll(7)};
}

// y = w x + b and loss = y y + w, of which w and b need gradients.
std::string check_chapter() {
  const auto [w, x, b] = numbers();
  Graph graph;
  Node* const leaf_w = graph.add();
  Node* const leaf_b = graph.add();
  Node* const product = graph.add({leaf_w, nullptr}, {x, w});
  const double y_value = w * x + b;
  Node* const y = graph.add({product, leaf_b}, {1, 1});
  Node* const square = graph.add({y, y}, {y_value, y_value});
  graph.add({square, leaf_w}, {1, 1});
  graph.run();
  return text("w gets ", graph.gradient(*leaf_w), ", b gets ", graph.gradient(*leaf_b));
}

// Leaves, then nodes with one to three inputs, some of them equal, some null. The newest node uses all that no other one
// uses, except node kUnused, which does not lead to it.
void build(Graph& graph, std::uint64_t seed) {
  constexpr int kLeaves = 5, kNodes = 22, kUnused = 7;
  Dice dice(seed);
  std::vector<GraphNode*> made;
  std::vector<bool> is_used(kNodes);
  while (std::ssize(made) < kNodes - 1) {
    std::vector<GraphNode*> inputs;
    std::vector<double> factors;
    for (int i = std::ssize(made) < kLeaves ? 0 : 1 + dice.roll(3); i > 0; --i) {
      const auto input = static_cast<std::size_t>(dice.roll(static_cast<int>(made.size())));
      const bool is_null = input == kUnused || dice.roll(8) == 0;
      if (!is_null) is_used[input] = true;
      inputs.push_back(is_null ? nullptr : made[input]);
      factors.push_back(1 + dice.roll(2));
    }
    made.push_back(graph.add(std::move(inputs), std::move(factors)));
  }
  std::vector<GraphNode*> rest;
  for (std::size_t i = 0; i < made.size(); ++i)
    if (!is_used[i] && i != kUnused) rest.push_back(made[i]);
  const std::size_t count = rest.size();
  graph.add(std::move(rest), std::vector<double>(count, 1));
}

constexpr int kGraphs = 20;

// Calls check(graph) after backward of several graphs.
void for_each_graph(const std::function<void(const Graph& graph)>& check) {
  for (std::uint64_t i = 0; i < kGraphs; ++i) {
    Graph graph;
    build(graph, 1000 * seed_of() + i);
    graph.run();
    check(graph);
  }
}

std::string check_once() {
  for_each_graph([](const Graph&) {});
  return text(kGraphs, " graphs of 22 nodes");
}

std::string check_order() {
  for_each_graph([](const Graph& graph) {
    int before = -1;
    for (const int number : graph.calls()) {
      if (graph.node(number).is_leaf()) continue;
      require(before < 0 || number < before, "node ", before, " runs before node ", number,
              ", which is newer and was ready, too: choose the newest of the ready nodes");
      before = number;
    }
  });
  return "from the newest node to the oldest";
}

std::string check_leaves() {
  for_each_graph([](const Graph& graph) {
    int last = -1;  // the node before
    for (const int number : graph.calls()) {
      const auto& users = graph.users(number);
      if (graph.node(number).is_leaf())
        require(std::ranges::find(users, last) != users.end(), "leaf ", number, " is complete when its users, nodes ",
                list(users), ", have run, but node ", last, " runs first: DDP would launch its all-reduce too late");
      else
        last = number;
    }
  });
  return "each as soon as its gradient is complete";
}

// A recursive function would need more stack than there is.
std::string check_chain() {
  constexpr int kLength = 100000;
  Graph graph;
  Node* last = graph.add();
  for (int i = 0; i < kLength; ++i) last = graph.add({last}, {1});
  graph.run();
  return text(kLength, " nodes in a row");
}

}  // namespace

std::vector<Check> checks(const std::string&, const std::string&) {
  const auto [w, x, b] = numbers();
  print_task(text("w = ", w, ", x = ", x, ", b = ", b, "; ", kGraphs, " graphs of 22 nodes"));
  return {{"loss = y y + w", check_chapter},
          {"each node once, complete", check_once},
          {"newest first", check_order},
          {"leaves at once", check_leaves},
          {"a long chain, without recursion", check_chain}};
}

}  // namespace grader
