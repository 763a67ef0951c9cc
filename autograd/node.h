// The graph: a Node for each recorded operation, with edges to the nodes (or leaves) that its inputs came from.
//
// An operation enters the graph through `record`, with a closure that turns the gradient of its output into the
// gradients of its inputs. The closure is written in public operations, so that it can be recorded itself: that is how
// second derivatives work.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/tensor/small_vector.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::autograd {

class Node;
struct History;

// The gradients of an operation's inputs, in order; undefined where none is wanted.
class Gradients : public SmallVector<Tensor, 4> {
 public:
  Gradients() = default;
  // One for each input, in order.
  template <class... T>
  requires(sizeof...(T) > 0 && (std::is_convertible_v<T&&, Tensor> && ...)) Gradients(T&&... gradients) {
    (emplace_back(std::forward<T>(gradients)), ...);
  }
};

using Tensors = SmallVector<Tensor, 2>;  // the gradients of several outputs

// Where a gradient goes: into another operation's output, or into a leaf. Neither: nothing wants it.
struct Edge {
  Ref<Node> node;
  Tensor leaf;
  std::uint32_t output = 0;  // which output of `node`
  bool wanted() const { return node || leaf.defined(); }
};

// Which gradients are wanted, and where they may be written.
class Needs {
 public:
  Needs(const Node& node, std::uint64_t wanted, bool homes, bool retains_graph)
      : node_(node), wanted_(wanted), homes_(homes), retains_graph_(retains_graph) {}
  // Whether input `input` wants a gradient.
  bool operator[](std::size_t input) const { return input >= 64 || (wanted_ >> input & 1u); }
  // The place (a gradient bucket) where the leaf behind this input keeps its gradient, if this is its first
  // contribution and grad mode is off; otherwise undefined. A kernel that writes there saves a copy.
  Tensor home(std::size_t input) const;
  // Whether the graph may run backward again.
  bool retains_graph() const { return retains_graph_; }

 private:
  const Node& node_;
  std::uint64_t wanted_;  // bit i: input i
  bool homes_;            // gradients may be written where they live
  bool retains_graph_;
};

// A tensor that backward needs. Notices, and says, when it was changed in place after it was saved. Keeps nothing while
// grad mode is off, or where `wanted` says that no gradient will need it.
class Saved {
 public:
  Saved() = default;
  explicit Saved(const Tensor& tensor, bool wanted = true) {
    if (!wanted || !grad_mode() || !tensor.defined()) return;
    tensor_ = tensor;
    version_ = tensor.version();
  }
  // Throws InvalidArgument where it was changed since.
  const Tensor& operator*() const {
    if (tensor_.defined() && tensor_.version() != version_) [[unlikely]]
      throw_changed();
    return tensor_;
  }
  const Tensor* operator->() const { return &**this; }  // throws as well

 private:
  [[noreturn]] void throw_changed() const;
  Tensor tensor_;
  std::uint32_t version_ = 0;
};

// What is known of an output without keeping it alive.
struct OutputInfo {
  Shape shape;
  DType dtype = kFloat32;
  Device device;
  Tensor saved;  // the output's storage without history, where the closure asks for outputs
  std::uint32_t version = 0;
};

class Node : public RefCounted<Node>, public SmallObject {
 public:
  explicit Node(const char* name);
  virtual ~Node() = default;
  // Iterative: a chain of any length is destroyed without recursion.
  static void destroy(const Node* node);

  // Turns output gradients into input gradients. Undefined gradients of single outputs never arrive here.
  virtual Gradients run(Tensors& grads, const Needs& needs) = 0;
  // Frees the saved tensors; running the node again is an error afterwards. A node that saved no tensor may
  // run again.
  virtual void release() = 0;
  virtual bool released() const = 0;

  const char* name;
  std::uint64_t sequence;      // order of creation: later operations run backward first
  int micro_batch;             // of the thread that recorded it, restored while it runs backward
  const void* replica;         // its replica context (thread_context.h), restored as well
  SmallVector<Edge, 3> edges;  // one for each input
  SmallVector<OutputInfo, 1> outputs;
  struct Hook {
    std::uint64_t id;
    std::uint32_t output;
    Callback<Tensor(const Tensor&)> run;
  };
  std::vector<Hook> hooks;

  // Output `index` again, with its history where grad mode is on.
  Tensor output(std::size_t index);
};

// The sequence number of the node that was made last, by whatever thread: later ones have a higher number.
std::uint64_t newest_sequence();

// True where grad mode is on and `tensor` takes part in gradients.
bool requires_grad(const Tensor& tensor);

namespace detail {

// An argument of record: refers, without counting.
struct Input {
  Input(const Tensor& t) : tensor(&t) {}  // NOLINT: implicit
  const Tensor* tensor;
};

bool should_record(std::initializer_list<Input> inputs);
bool should_record(const std::vector<Tensor>& inputs);
void add_edge(Node& node, const Tensor& input);
// Makes `outputs` the node's outputs: gives each a history that leads to it.
void attach(Ref<Node> node, Tensor* outputs, std::size_t count, bool save_outputs);

template <class Backward>
class ClosureNode final : public Node {
 public:
  template <class F>
  ClosureNode(const char* op, F&& backward) : Node(op), backward_(std::in_place, std::forward<F>(backward)) {}

  static constexpr bool kWantsOutput = std::is_invocable_v<Backward&, const Tensor&, const Needs&, const Tensor&>;
  static constexpr bool kSingle = kWantsOutput || std::is_invocable_v<Backward&, const Tensor&, const Needs&>;

  Gradients run(Tensors& grads, const Needs& needs) override {
    if constexpr (kWantsOutput)
      return (*backward_)(grads[0], needs, output(0));
    else if constexpr (kSingle)
      return (*backward_)(grads[0], needs);
    else
      return (*backward_)(grads, needs);
  }
  void release() override {
    if (!saves_tensors()) return;
    backward_.reset();
    for (OutputInfo& info : outputs) info.saved = Tensor();
  }
  bool released() const override { return !backward_.has_value(); }

 private:
  // A closure without the member saves_tensors holds no tensor if its type has nothing to destroy.
  bool saves_tensors() const {
    if constexpr (requires { backward_->saves_tensors(); })
      return backward_->saves_tensors();
    else
      return kWantsOutput || !std::is_trivially_destructible_v<Backward>;
  }

  std::optional<Backward> backward_;
};

}  // namespace detail

// Records an operation with one output. `backward` is a closure
//   (const Tensor& grad, const Needs& needs) -> Gradients, or
//   (const Tensor& grad, const Needs& needs, const Tensor& out) -> Gradients, where it needs the output: the engine
//   hands it back, since a closure that captured it would keep itself alive.
// Backward frees a closure that saved tensors, after which the node cannot run again. Every closure counts as
// one that did, unless its type is trivially destructible (numbers and shapes are), or has a member function
// `bool saves_tensors() const` that returns false.
// Returns `out`, which takes part in gradients if an input does.
template <class Backward>
Tensor record(const char* name, Tensor out, std::initializer_list<detail::Input> inputs, Backward&& backward) {
  if (!detail::should_record(inputs)) return out;
  using Closure = detail::ClosureNode<std::decay_t<Backward>>;
  static_assert(Closure::kSingle, "a closure for several outputs goes to record_all");
  auto node = Ref<Node>::adopt(new Closure(name, std::forward<Backward>(backward)));
  for (const detail::Input& input : inputs) detail::add_edge(*node, *input.tensor);
  detail::attach(std::move(node), &out, 1, Closure::kWantsOutput);
  return out;
}

// Records an operation with any number of inputs and one output.
template <class Backward>
Tensor record(const char* name, Tensor out, const std::vector<Tensor>& inputs, Backward&& backward) {
  if (!detail::should_record(inputs)) return out;
  using Closure = detail::ClosureNode<std::decay_t<Backward>>;
  auto node = Ref<Node>::adopt(new Closure(name, std::forward<Backward>(backward)));
  for (const Tensor& input : inputs) detail::add_edge(*node, input);
  detail::attach(std::move(node), &out, 1, Closure::kWantsOutput);
  return out;
}

// Records an operation with several outputs. `backward` is (Tensors& grads, const Needs& needs) -> Gradients; the
// gradient of an output that nothing used is undefined.
template <class Backward>
std::vector<Tensor> record_all(const char* name, std::vector<Tensor> outs, const std::vector<Tensor>& inputs,
                               Backward&& backward) {
  if (!detail::should_record(inputs)) return outs;
  using Closure = detail::ClosureNode<std::decay_t<Backward>>;
  auto node = Ref<Node>::adopt(new Closure(name, std::forward<Backward>(backward)));
  for (const Tensor& input : inputs) detail::add_edge(*node, input);
  detail::attach(std::move(node), outs.data(), outs.size(), false);
  return outs;
}

}  // namespace lockstep::autograd
