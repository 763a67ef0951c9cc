#include "lockstep/autograd/engine_internal.h"

#include <algorithm>

#include "lockstep/autograd/anomaly_internal.h"
#include "lockstep/autograd/ops/functions.h"
#include "lockstep/autograd/state_index_internal.h"
#include "lockstep/autograd/thread_context_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/base/trace.h"
#include "lockstep/tensor/autocast.h"
#include "lockstep/tensor/ops/ops_internal.h"
#include "lockstep/tensor/random/random.h"

namespace lockstep::autograd {

namespace {

// The state of a node, or of a leaf, in one backward.
struct NodeState {
  Node* node = nullptr;  // null for a leaf
  TensorImpl* leaf = nullptr;
  std::int32_t pending = 0;       // incoming edges whose contribution has not arrived; -1: marked as ready
  std::int32_t first_target = 0;  // of a node: index in Backward::targets_ of the target of its first edge
  bool useful = true;             // a requested input is this node or leaf, or one that it leads to
  bool requested = false;         // a requested input is this node or leaf
  bool runs_inline = false;       // of a leaf: contributions are added to its gradient as they arrive
  std::int32_t deferred = -1;     // of a node in a split backward: its index in PartI::rest or part_w; -1: none
  Tensors grads;                  // for each output (a leaf has one), the sum of the contributions that have arrived
  History& leaf_history() const { return static_cast<History&>(*leaf->autograd); }
};

// True if no other handle refers to the elements, so that they may be changed or kept.
bool is_sole_owner(const Tensor& t) {
  return t.ref()->use_count() == 1 && t.impl().storage->use_count() == 1 && t.is_contiguous();
}

// Returns the gradient in contiguous memory that nothing else refers to: a leaf keeps it, and later
// backwards add to it in place. Outside create_graph the result has no history, whatever a hook or a
// Function recorded.
Tensor keep(Tensor gradient) {
  const bool has_history = gradient.impl().autograd && !grad_mode();
  return is_sole_owner(gradient) && !has_history ? std::move(gradient) : gradient.clone();
}

Tensor add_gradients(Tensor sum, const Tensor& next) {
  if (grad_mode()) return add(sum, next);
  if (!is_sole_owner(sum)) sum = raw::clone(sum);
  raw::add_(sum, next);
  return sum;
}

// Adds a complete contribution to the leaf's gradient: in its view if it has one, without a copy where possible.
void accumulate(History& leaf, Tensor next) {
  if (!leaf.requires_grad) return;  // frozen since the forward
  if (grad_mode()) {
    leaf.grad = leaf.grad.defined() ? add(leaf.grad, next) : keep(std::move(next));
    return;
  }
  const bool in_view = leaf.view.defined() && next.raw_data() == leaf.view.raw_data();
  if (leaf.grad.defined() && in_view) {  // an operation wrote its second contribution there
    raw::add_(leaf.view, leaf.grad);
    leaf.grad = leaf.view;
  } else if (leaf.grad.defined()) {
    raw::add_(leaf.grad, next);
    leaf.grad.impl().storage->bump_version();
  } else if (in_view) {
    leaf.grad = leaf.view;
  } else if (leaf.view.defined() && !leaf.view_taker) {
    raw::copy(next, leaf.view);
    ++leaf.copies;
    leaf.grad = leaf.view;
  } else {
    leaf.grad = keep(std::move(next));
  }
}

// Restores the thread state that a node was recorded under.
class NodeContext {
 public:
  explicit NodeContext(const Node& node) : micro_batch_(node.micro_batch), replica_(replica_context()) {
    set_replica_context(node.replica);
  }
  ~NodeContext() { set_replica_context(replica_); }
  NodeContext(const NodeContext&) = delete;
  NodeContext& operator=(const NodeContext&) = delete;

 private:
  random::MicroBatchGuard micro_batch_;
  const void* replica_;
};

class Backward final : public Run {
 public:
  explicit Backward(const BackwardRequest& request) : request_(request), captured_(request.inputs.size()) {}
  // Releases the views that it took, also after an exception. A backward inside another one keeps the outer one's views.
  ~Backward() {
    for (const NodeState& each : states_) {
      if (each.leaf && each.leaf_history().view_taker == this) each.leaf_history().view_taker = nullptr;
    }
  }
  Backward(const Backward&) = delete;
  Backward& operator=(const Backward&) = delete;

  std::vector<Tensor> run() {
    const EnableGradGuard mode(request_.create_graph);
    const AutocastGuard no_autocast(std::nullopt);  // dtypes are those that forward recorded
    try {
      run_graph();
      for (std::size_t i = 0; i < callbacks_.size(); ++i) {  // a callback may add another
        const Callback<void()> callback = std::move(callbacks_[i]);
        callback();
      }
    } catch (const std::exception& error) {
      end_by(error);
      throw;
    } catch (...) {
      end_by(Error("an exception that is not a std::exception"));
      throw;
    }
    return std::move(captured_);
  }

  bool accumulates() const override { return request_.inputs.empty(); }
  void at_end(Callback<void()> callback) override { callbacks_.push_back(std::move(callback)); }
  void at_error(Callback<void(const std::exception&)> callback) override {
    error_callbacks_.push_back(std::move(callback));
  }

 private:
  void end_by(const std::exception& error) {
    for (const Callback<void(const std::exception&)>& callback : error_callbacks_) callback(error);
  }
  void run_graph() {
    const TraceSpan span(TraceKind::kBackward, "backward");
    for (std::size_t i = 0; i < request_.part_w.size(); ++i) roots_.push_back(resume(static_cast<std::int32_t>(i)));
    for (const Tensor& root : request_.roots) roots_.push_back(discover(root));
    if (!request_.inputs.empty()) mark_useful();
    if (request_.part_i && !defer_edges(*request_.part_i)) return;
    for (std::size_t i = 0; i < request_.roots.size(); ++i)
      receive(roots_[i], history(request_.roots[i])->output, request_.gradients[i]);
    for (const std::int32_t root : roots_) mark_ready(root);
    while (!ready_.empty()) run_node(pop_ready());
  }

  NodeState& state(std::int32_t index) { return states_[static_cast<std::size_t>(index)]; }
  // The index of the state that an edge leads to; -1 if its gradient is not wanted.
  std::int32_t target(const NodeState& from, std::size_t edge) const {
    return targets_[static_cast<std::size_t>(from.first_target) + edge];
  }

  // The index of the state of a node or a leaf; adds a state if there is none.
  std::int32_t state_of(Node* node, TensorImpl* leaf) {
    std::int32_t& index = index_.at(node ? static_cast<const void*>(node) : leaf);
    if (index >= 0) return index;
    index = static_cast<std::int32_t>(states_.size());
    NodeState& added = states_.emplace_back();
    added.node = node;
    added.leaf = leaf;
    added.grads.resize(node ? node->outputs.size() : 1);
    if (leaf && request_.inputs.empty()) {
      const History& own = added.leaf_history();
      added.runs_inline = own.tensor_hooks.empty() && (!own.separate_contributions || !own.grad.defined());
    }
    if (node) unexplored_.push_back(index);
    return index;
  }

  // Finds all nodes and leaves that `root` leads to, counts the edges into each, and calls the run hooks. Returns the index
  // of the root's state.
  std::int32_t discover(const Tensor& root) {
    Node* const node = history(root)->node.get();
    const std::int32_t start = state_of(node, node ? nullptr : root.ref().get());
    explore();
    return start;
  }
  void explore() {
    while (!unexplored_.empty()) {
      const std::int32_t from = unexplored_.back();
      unexplored_.pop_back();
      state(from).first_target = static_cast<std::int32_t>(targets_.size());
      for (const Callback<void(Run&)>& hook : state(from).node->run_hooks) hook(*this);
      const std::int32_t deferred = state(from).deferred;
      std::size_t i = 0;
      for (const Edge& edge : state(from).node->edges) {
        const bool runs = edge.wanted() && (deferred < 0 || resumed(deferred).edges[i]);
        const std::int32_t to = runs ? state_of(edge.node.get(), edge.leaf.ref().get()) : -1;
        if (to >= 0) ++state(to).pending;
        targets_.push_back(to);
        ++i;
      }
    }
  }

  DeferredNode& resumed(std::int32_t index) { return request_.part_w[static_cast<std::size_t>(index)]; }
  // Part W: adds a node with complete gradients, and explores its edges that part I has left. Returns the index of the
  // node's state.
  std::int32_t resume(std::int32_t deferred) {
    const std::int32_t start = state_of(resumed(deferred).node.get(), nullptr);
    state(start).deferred = deferred;
    state(start).grads = std::move(resumed(deferred).grads);
    explore();
    return start;
  }

  // Part I: takes the edges that do not lead to the input out of this backward, and lists the nodes that have some.
  // Returns false if the root does not lead to the input.
  bool defer_edges(PartI& part) {
    part.reaches_input = state(roots_[0]).useful;
    if (!part.reaches_input) return false;
    for (NodeState& each : states_) {
      if (!each.node || !each.useful) continue;
      for (std::size_t i = 0; i < each.node->edges.size(); ++i) {
        std::int32_t& to = targets_[static_cast<std::size_t>(each.first_target) + i];
        if (to < 0 || state(to).useful) continue;
        to = -1;
        if (each.deferred < 0) {
          each.deferred = static_cast<std::int32_t>(part.rest.size());
          part.rest.push_back({Ref<Node>::share(each.node), {}, std::vector<bool>(each.node->edges.size())});
        }
        part.rest.back().edges[i] = true;
      }
    }
    return true;
  }

  // Marks the nodes and leaves that are a requested input or lead to one. Edges lead from newer operations to older ones,
  // so nodes are visited oldest first.
  void mark_useful() {
    std::vector<NodeState*> nodes;
    for (NodeState& each : states_) {
      each.useful = false;
      if (each.node) nodes.push_back(&each);
    }
    for (const Tensor& input : request_.inputs) {
      const History& own = *history(input);
      const std::int32_t index = index_.at(own.node ? static_cast<const void*>(own.node.get()) : input.ref().get());
      if (index >= 0) state(index).useful = state(index).requested = true;
    }
    std::ranges::sort(nodes, {}, [](const NodeState* each) { return each->node->sequence; });
    for (NodeState* each : nodes) {
      for (std::size_t i = 0; i < each->node->edges.size(); ++i) {
        const std::int32_t to = target(*each, i);
        each->useful = each->useful || (to >= 0 && state(to).useful);
      }
    }
  }

  // Adds one contribution to the gradient of output `output` of a node or a leaf. An undefined contribution is none. The
  // newest operation runs first, so the order of additions follows from the graph alone.
  void receive(std::int32_t index, std::uint32_t output, Tensor tensor) {
    if (!tensor.defined()) return;
    NodeState& to = state(index);
    if (to.runs_inline) {
      accumulate(to.leaf_history(), std::move(tensor));
    } else {
      Tensor& sum = to.grads[output];
      sum = sum.defined() ? add_gradients(std::move(sum), tensor) : std::move(tensor);
    }
  }

  // Marks a node or a leaf as ready if all its contributions have arrived. A ready leaf is completed inline.
  void mark_ready(std::int32_t index) {
    NodeState& at = state(index);
    if (at.pending != 0) return;
    at.pending = -1;  // a tensor may be a root twice
    if (at.leaf)
      complete_leaf(at);
    else
      push_ready(index);
  }

  void complete_leaf(NodeState& at) {
    History& own = at.leaf_history();
    Tensor& grad = at.grads[0];
    if (grad.defined()) {
      for (const Node::Hook& hook : own.tensor_hooks) apply_hook(hook, grad);
    }
    if (!request_.inputs.empty()) {
      if (at.requested) capture(at.leaf, 0, grad);
      return;
    }
    if (grad.defined()) accumulate(own, std::move(grad));
    for (const LeafHook& hook : own.leaf_hooks) hook.run(*this);
  }

  void run_node(NodeState& at) {
    Node& node = *at.node;
    bool any = false;
    PartI* const part_i = at.deferred < 0 ? nullptr : request_.part_i;
    for (const Node::Hook& hook : node.hooks) {
      if (at.grads[hook.output].defined() && (at.deferred < 0 || part_i)) apply_hook(hook, at.grads[hook.output]);
    }
    if (part_i) part_i->rest[static_cast<std::size_t>(at.deferred)].grads = at.grads;
    for (std::uint32_t i = 0; i < at.grads.size(); ++i) {
      any = any || at.grads[i].defined();
      if (at.requested) capture(&node, i, at.grads[i]);
    }
    Gradients gradients = any && at.useful ? gradients_of(node, at) : Gradients();
    at.grads.clear();
    for (std::size_t i = 0; i < node.edges.size(); ++i) {
      const std::int32_t to = target(at, i);
      if (to < 0) continue;
      if (i < gradients.size() && gradients[i].defined() && state(to).useful)
        receive(to, node.edges[i].output, fit(node, i, std::move(gradients[i])));
      --state(to).pending;
      mark_ready(to);
    }
  }

  Gradients gradients_of(Node& node, NodeState& at) {
    LOCKSTEP_CHECK(!node.released(),
                   "backward: {} was already run backward and its saved tensors are gone; pass "
                   ".retain_graph = true the first time",
                   node.name);
    std::uint64_t wanted = 0;
    for (std::size_t i = 0; i < node.edges.size() && i < 64; ++i) {
      const std::int32_t to = target(at, i);
      wanted |= std::uint64_t{to >= 0 && state(to).useful} << i;
    }
    try {
      const NodeContext context(node);
      const TraceSpan span(TraceKind::kBackward, node.name);
      const void* const view_taker = request_.inputs.empty() && !grad_mode() ? this : nullptr;
      const bool is_split = at.deferred >= 0;
      const bool retain = request_.retain_graph || request_.create_graph || (is_split && request_.part_i);
      const bool checks = is_checked(node), received_nan = checks && has_nan(at.grads);
      Gradients gradients = node.run(at.grads, Needs(node, wanted, view_taker, retain, is_split));
      if (checks) check_anomaly(node, received_nan, gradients);
      if (!retain) node.release();
      LOCKSTEP_CHECK(gradients.size() >= node.edges.size() || gradients.empty(), "returned {} gradients for {} inputs",
                     gradients.size(), node.edges.size());
      return gradients;
    } catch (Error& error) {
      error.add_context(std::string(node.name) + " (backward)");
      throw;
    }
  }

  // The gradient in the dtype of the input that it belongs to. Throws InvalidArgument for a wrong shape.
  static Tensor fit(const Node& node, std::size_t input, Tensor gradient) {
    const Edge& edge = node.edges[input];
    const Shape& shape = edge.node ? edge.node->outputs[edge.output].shape : edge.leaf.shape();
    const DType dtype = edge.node ? edge.node->outputs[edge.output].dtype : edge.leaf.dtype();
    LOCKSTEP_CHECK(gradient.shape() == shape, "{} (backward): the gradient of input {} has shape {}, the input {}",
                   node.name, input, gradient.shape().to_string(), shape.to_string());
    return gradient.dtype() == dtype ? std::move(gradient) : gradient.to(dtype);
  }

  static void apply_hook(const Node::Hook& hook, Tensor& grad) {
    Tensor replacement = hook.run(grad);
    if (!replacement.defined()) return;
    LOCKSTEP_CHECK(replacement.shape() == grad.shape() && replacement.dtype() == grad.dtype(),
                   "hook: it returned {} for a gradient that is {}", describe(replacement), describe(grad));
    grad = std::move(replacement);
  }

  void capture(const void* at, std::uint32_t output, const Tensor& grad) {
    for (std::size_t i = 0; i < request_.inputs.size(); ++i) {
      const History& input = *history(request_.inputs[i]);
      const void* own = input.node ? static_cast<const void*>(input.node.get()) : request_.inputs[i].ref().get();
      if (own == at && input.output == output) captured_[i] = grad;
    }
  }

  struct Ready {
    std::uint64_t sequence;
    std::int32_t index;
    bool operator<(const Ready& other) const { return sequence < other.sequence; }
  };
  void push_ready(std::int32_t index) {
    ready_.push_back({state(index).node->sequence, index});
    std::push_heap(ready_.begin(), ready_.end());
  }
  NodeState& pop_ready() {
    std::pop_heap(ready_.begin(), ready_.end());
    const std::int32_t index = ready_.back().index;
    ready_.pop_back();
    return state(index);
  }

  const BackwardRequest& request_;
  StateIndex index_;
  SmallVector<NodeState, 10> states_;
  SmallVector<std::int32_t, 24> targets_;
  SmallVector<std::int32_t, 8> unexplored_;
  SmallVector<std::int32_t, 2> roots_;
  SmallVector<Ready, 8> ready_;  // a heap: the newest operation first
  std::vector<Tensor> captured_;
  std::vector<Callback<void()>> callbacks_;
  std::vector<Callback<void(const std::exception&)>> error_callbacks_;
};

}  // namespace

Tensor Needs::view(std::size_t input) const {
  const Edge& edge = node_.edges[input];
  if (!view_taker_ || !edge.leaf.defined()) return {};
  History& leaf = *history(edge.leaf);
  if (!leaf.view.defined() || leaf.view_taker || leaf.grad.defined() || !leaf.tensor_hooks.empty()) return {};
  leaf.view_taker = view_taker_;
  return leaf.view;
}

std::vector<Tensor> run_backward(const BackwardRequest& request) { return Backward(request).run(); }

}  // namespace lockstep::autograd
