/// \file
/// The graph: a Node for each recorded operation, with edges to the nodes (or leaves) that produced its inputs.
///
/// `record` adds an operation to the graph, with a closure that turns the gradient of its output into the gradients of
/// its inputs. The closure consists of public operations, so it can itself be recorded, which gives second derivatives.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/base/small_vector.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::autograd {

class Node;
class Run;
struct History;

/// The gradients of an operation's inputs, in order; undefined where none is needed.
class Gradients : public SmallVector<Tensor, 4> {
 public:
  Gradients() = default;
  /// Takes one gradient for each input, in order.
  template <class... T>
  requires(sizeof...(T) > 0 && (std::is_convertible_v<T&&, Tensor> && ...)) Gradients(T&&... gradients) {
    (emplace_back(std::forward<T>(gradients)), ...);
  }
};

using Tensors = SmallVector<Tensor, 2>;  ///< the gradients of several outputs

/// The target of a gradient: an output of another operation, or a leaf. Neither is set if no gradient is needed.
struct Edge {
  Ref<Node> node;
  Tensor leaf;
  std::uint32_t output = 0;  ///< which output of `node`
  bool wanted() const { return node || leaf.defined(); }
};

/// Tells a closure which gradients are needed, and where it may write them.
class Needs {
 public:
  Needs(const Node& node, std::uint64_t wanted, const void* view_taker, bool retains_graph, bool is_split)
      : node_(node), wanted_(wanted), view_taker_(view_taker), retains_graph_(retains_graph), is_split_(is_split) {}
  /// Whether input `input` needs a gradient.
  bool operator[](std::size_t input) const { return input >= 64 || (wanted_ >> input & 1u); }
  /// The bucket view of the leaf that is this input, if this is the leaf's first contribution and grad mode is off;
  /// otherwise undefined. A kernel that writes its result there avoids a copy.
  Tensor view(std::size_t input) const;
  /// Whether the graph may run backward again.
  bool retains_graph() const { return retains_graph_; }
  /// Whether another run of the closure, with complementary needs, computes the other gradients (a split backward). Both
  /// runs must compute each gradient as a run that computes all of them does.
  bool is_split() const { return is_split_; }

 private:
  const Node& node_;
  std::uint64_t wanted_;    // bit i: input i
  const void* view_taker_;  // the backward, if gradients may be written to bucket views
  bool retains_graph_, is_split_;
};

/// A tensor saved for backward. Reading it throws if it was changed in place since. Saves nothing while grad mode is
/// off, or if `wanted` is false. Throws InvalidArgument for a tensor made under InferenceGuard.
class Saved {
 public:
  Saved() = default;
  explicit Saved(const Tensor& tensor, bool wanted = true) {
    if (!wanted || !grad_mode() || !tensor.defined()) return;
    if (tensor.is_inference()) [[unlikely]]
      throw_inference(tensor);
    tensor_ = tensor;
    version_ = tensor.version();
  }
  /// Throws InvalidArgument if the tensor was changed in place since it was saved.
  const Tensor& operator*() const {
    if (tensor_.defined() && tensor_.version() != version_) [[unlikely]]
      throw_changed();
    return tensor_;
  }
  const Tensor* operator->() const { return &**this; }  ///< throws as well

 private:
  [[noreturn]] void throw_changed() const;
  [[noreturn]] static void throw_inference(const Tensor& tensor);
  Tensor tensor_;
  std::uint32_t version_ = 0;
};

/// Describes an output without keeping it alive.
struct OutputInfo {
  Shape shape;
  DType dtype = kFloat32;
  Device device;
  Tensor saved;  ///< the output's storage without history, where the closure asks for outputs
  std::uint32_t version = 0;
};

class Node : public RefCounted<Node>, public SmallObject {
 public:
  explicit Node(const char* name);
  virtual ~Node() = default;
  /// Destroys a chain of any length iteratively, without recursion.
  static void destroy(const Node* node);

  /// Turns output gradients into input gradients. The gradient of a single output is always defined.
  virtual Gradients run(Tensors& grads, const Needs& needs) = 0;
  /// Frees the saved tensors; running the node again is an error afterwards. A node that saved no tensor may
  /// run again.
  virtual void release() = 0;
  virtual bool released() const = 0;

  const char* name;
  std::uint64_t sequence;  ///< order of creation: later operations run backward first
  int micro_batch;         ///< micro-batch of the recording thread, restored while the node runs backward
  const void* replica;     ///< replica context (thread_context_internal.h) of that thread, restored as well
  /// Under AnomalyGuard, the module that recorded it (empty outside of modules).
  std::unique_ptr<const std::string> checked_module;
  SmallVector<Edge, 3> edges;  ///< one for each input
  SmallVector<OutputInfo, 1> outputs;
  struct Hook {
    std::uint64_t id;
    std::uint32_t output;
    Callback<Tensor(const Tensor&)> run;
  };
  std::vector<Hook> hooks;
  std::vector<Callback<void(Run&)>> run_hooks;  ///< see register_run_hook (history_internal.h)

  /// The saved output `index`, with its history if grad mode is on.
  Tensor output(std::size_t index);
};

/// The sequence number of the newest node of all threads. Later nodes have higher numbers.
std::uint64_t newest_sequence();

/// True if grad mode is on and `tensor` requires grad.
bool requires_grad(const Tensor& tensor);

namespace detail {

// An argument of record: a reference that does not change the reference count.
struct Input {
  Input(const Tensor& t) : tensor(t) {}              // NOLINT: implicit
  operator const Tensor&() const { return tensor; }  // NOLINT: implicit
  const Tensor& tensor;
};

bool should_record(std::initializer_list<Input> inputs);
bool should_record(const std::vector<Tensor>& inputs);
void add_edge(Node& node, const Tensor& input);
// Makes `outputs` the node's outputs: sets the history of each to the node.
void attach(Ref<Node> node, std::span<Tensor> outputs, bool save_outputs);

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
  // A closure without the member saves_tensors holds no tensor if its type is trivially destructible.
  bool saves_tensors() const {
    if constexpr (requires { backward_->saves_tensors(); })
      return backward_->saves_tensors();
    else
      return kWantsOutput || !std::is_trivially_destructible_v<Backward>;
  }

  std::optional<Backward> backward_;
};

// Records an operation if an input requires grad.
template <class Inputs, class Backward>
void record(const char* name, std::span<Tensor> outputs, const Inputs& inputs, Backward&& backward) {
  if (!should_record(inputs)) return;
  using Closure = ClosureNode<std::decay_t<Backward>>;
  auto node = Ref<Node>::adopt(new Closure(name, std::forward<Backward>(backward)));
  for (const Tensor& input : inputs) add_edge(*node, input);
  attach(std::move(node), outputs, Closure::kWantsOutput);
}

}  // namespace detail

/// Records an operation with one output. `backward` is a closure
///     (const Tensor& grad, const Needs& needs) -> Gradients, or
///     (const Tensor& grad, const Needs& needs, const Tensor& out) -> Gradients, if it needs the output. The engine
///     passes the output, because a closure that captured it would keep itself alive.
/// Backward frees a closure that saved tensors; the node cannot run again afterwards. Every closure counts as having
/// saved tensors, unless its type is trivially destructible (numbers and shapes are), or has a member function
/// `bool saves_tensors() const` that returns false.
/// Returns `out`, which requires grad if an input does.
template <class Backward>
Tensor record(const char* name, Tensor out, std::initializer_list<detail::Input> inputs, Backward&& backward) {
  using Closure = detail::ClosureNode<std::decay_t<Backward>>;
  static_assert(Closure::kSingle, "a closure for several outputs goes to record_all");
  detail::record(name, {&out, 1}, inputs, std::forward<Backward>(backward));
  return out;
}

/// Records an operation with any number of inputs and one output.
template <class Backward>
Tensor record(const char* name, Tensor out, const std::vector<Tensor>& inputs, Backward&& backward) {
  detail::record(name, {&out, 1}, inputs, std::forward<Backward>(backward));
  return out;
}

/// Records an operation with several outputs. `backward` is (Tensors& grads, const Needs& needs) -> Gradients; the
/// gradient of an output that nothing used is undefined.
template <class Backward>
std::vector<Tensor> record_all(const char* name, std::vector<Tensor> outs, const std::vector<Tensor>& inputs,
                               Backward&& backward) {
  detail::record(name, outs, inputs, std::forward<Backward>(backward));
  return outs;
}

}  // namespace lockstep::autograd
