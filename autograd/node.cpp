#include "lockstep/autograd/node.h"

#include <algorithm>
#include <atomic>

#include "lockstep/autograd/history_internal.h"
#include "lockstep/autograd/thread_context_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"
#include "lockstep/tensor/random/random.h"
#include "lockstep/tensor/random/random_draws_internal.h"

namespace lockstep::autograd {

namespace {
constinit thread_local bool recording = true;
constinit thread_local bool finds_anomalies = false;
constinit thread_local const void* current_replica = nullptr;
constinit std::atomic<std::uint64_t> next_sequence{1};

bool wants_grad(const Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); }
}  // namespace

bool grad_mode() { return recording; }
void set_grad_mode(bool on) { recording = on && !inference_mode(); }

const void* replica_context() { return current_replica; }
void set_replica_context(const void* context) { current_replica = context; }

bool anomaly_mode() { return finds_anomalies; }
AnomalyModeGuard::AnomalyModeGuard(bool on) : previous_(std::exchange(finds_anomalies, on)) {}
AnomalyModeGuard::~AnomalyModeGuard() { finds_anomalies = previous_; }

void Saved::throw_changed() const {
  throw InvalidArgument(
      fmt::format("{} was changed in place after it was saved for backward (version {}, saved at {}); "
                  "change a clone() instead",
                  describe(tensor_), tensor_.version(), version_));
}

void Saved::throw_inference(const Tensor& tensor) {
  throw InvalidArgument(fmt::format(
      "{} was made under InferenceGuard, so it cannot be saved for backward; clone() it outside, or compute "
      "it under NoGradGuard",
      describe(tensor)));
}

Node::Node(const char* name)
    : name(name), sequence(next_sequence.fetch_add(1, std::memory_order_relaxed)),
      micro_batch(random::current_micro_batch()), replica(current_replica) {
  if (finds_anomalies) [[unlikely]]
    checked_module = std::make_unique<const std::string>(random::current_module());
}

std::uint64_t newest_sequence() { return next_sequence.load(std::memory_order_relaxed) - 1; }

void Node::destroy(const Node* first) {
  // A saved tensor may hold the last reference to an input, hence to the input's node, and so on down the chain. So
  // `pending` keeps the node's neighbours alive until the node is deleted; then it releases them one by one.
  SmallVector<Ref<Node>, 8> pending;
  SmallVector<const Node*, 8> dead;
  dead.push_back(first);
  while (!dead.empty()) {
    Node* node = const_cast<Node*>(dead.back());
    dead.pop_back();
    for (Edge& edge : node->edges) {
      if (edge.node) pending.push_back(std::move(edge.node));
    }
    delete node;
    while (!pending.empty()) {
      Node* neighbour = pending.back().release();
      pending.pop_back();
      if (neighbour->drop_ref()) dead.push_back(neighbour);
    }
  }
}

Tensor Node::output(std::size_t index) {
  const OutputInfo& info = outputs[index];
  if (info.saved.version() != info.version) [[unlikely]] {
    throw InvalidArgument(fmt::format("its result {} was changed in place before backward; change a clone() instead",
                                      describe(info.saved)));
  }
  if (!grad_mode()) return info.saved;
  Tensor out = raw::alias(info.saved);
  History& history = ensure_history(out);
  history.node = Ref<Node>::share(this);
  history.output = static_cast<std::uint32_t>(index);
  return out;
}

History& ensure_history(const Tensor& tensor) {
  auto& slot = tensor.impl().autograd;
  if (!slot) slot.reset(new History);  // make_unique would zero the memory first
  return static_cast<History&>(*slot);
}

bool requires_grad(const Tensor& tensor) { return recording && tensor.requires_grad(); }

namespace detail {

bool should_record(std::initializer_list<Input> inputs) { return recording && std::ranges::any_of(inputs, wants_grad); }
bool should_record(const std::vector<Tensor>& inputs) { return recording && std::ranges::any_of(inputs, wants_grad); }

void add_edge(Node& node, const Tensor& input) {
  Edge& edge = node.edges.emplace_back();
  if (!wants_grad(input)) return;
  const History& from = *history(input);
  if (from.node) {
    edge.node = from.node;
    edge.output = from.output;
  } else {
    edge.leaf = input;
  }
}

void attach(Ref<Node> node, std::span<Tensor> outputs, bool save_outputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    Tensor& out = outputs[i];
    OutputInfo& info = node->outputs.emplace_back();
    info.shape = out.shape();
    info.dtype = out.dtype();
    info.device = out.device();
    if (!out.is_floating_point()) continue;  // indices and masks have no gradient
    if (save_outputs) {
      info.saved = raw::alias(out);
      info.version = out.version();
    }
    // A handle that already has a history (an operation returned its input) gets a fresh one.
    if (out.impl().autograd) out = raw::alias(out);
    History& history = ensure_history(out);
    history.node = i + 1 < outputs.size() ? node : std::move(node);
    history.output = static_cast<std::uint32_t>(i);
  }
}

}  // namespace detail

}  // namespace lockstep::autograd

namespace lockstep {

InferenceGuard::InferenceGuard() : previous_(inference_mode()) { set_inference_mode(true); }
InferenceGuard::~InferenceGuard() { set_inference_mode(previous_); }

AnomalyGuard::AnomalyGuard() : previous_(std::exchange(autograd::finds_anomalies, true)) {}
AnomalyGuard::~AnomalyGuard() { autograd::finds_anomalies = previous_; }

}  // namespace lockstep
