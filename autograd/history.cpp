// The autograd members of Tensor, and the functions of history_internal.h for leaves.
#include "lockstep/autograd/history_internal.h"

#include <algorithm>

#include "lockstep/autograd/autograd.h"
#include "lockstep/autograd/engine_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/base/warning.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep {

using autograd::ensure_history;
using autograd::history;
using autograd::History;

bool Tensor::requires_grad() const {
  const History* own = history(*this);
  return own && (own->requires_grad || own->node);
}

bool Tensor::is_leaf() const {
  const History* own = history(*this);
  return !own || !own->node;
}

const Tensor& Tensor::requires_grad_(bool value) const {
  require_defined("requires_grad_", *this);
  LOCKSTEP_CHECK(is_leaf(), "requires_grad_: {} is the result of an operation; detach() it first", describe(*this));
  LOCKSTEP_CHECK(!value || is_floating_point(),
                 "requires_grad_: only floating-point tensors have gradients, this is {}", describe(*this));
  LOCKSTEP_CHECK(!value || !is_inference() || inference_mode(),
                 "requires_grad_: {} was made under InferenceGuard; clone() it first", describe(*this));
  if (value || history(*this)) ensure_history(*this).requires_grad = value;
  return *this;
}

Tensor Tensor::grad() const {
  require_defined("grad", *this);
  const History* own = history(*this);
  if (!own) return Tensor();
  if (own->node && !own->grad.defined())
    warn("grad", fmt::format("grad: {} is the result of {}, and backward accumulates gradients in leaves only\n"
                             "Use register_hook or autograd::grad for its gradient, or detach() it first",
                             describe(*this), own->node->name));
  return own->grad;
}

void Tensor::set_grad(const Tensor& grad) const {
  require_defined("set_grad", *this);
  if (!grad.defined()) {
    if (History* own = history(*this)) {
      own->grad = Tensor();
      own->view_taker = nullptr;
    }
    return;
  }
  LOCKSTEP_CHECK(grad.shape() == shape() && grad.dtype() == dtype() && grad.device() == device(),
                 "set_grad: the gradient is {}, the tensor {}; reshape it, or convert it with .to(...)", describe(grad),
                 describe(*this));
  // backward adds to the gradient in place, so its elements must be distinct and not shared with the tensor.
  ensure_history(*this).grad = raw::is_expanded(grad) || raw::overlap(grad, *this) ? raw::clone(grad) : grad;
}

void Tensor::backward() const { backward(Tensor()); }
void Tensor::backward(const BackwardOptions& options) const { backward(Tensor(), options); }

void Tensor::backward(const Tensor& gradient, const BackwardOptions& options) const {
  require_defined("backward", *this);
  const Tensor seed = autograd::root_gradient(*this, gradient);
  if (options.create_graph) {
    warn(
        "backward: create_graph",
        "backward: create_graph makes a reference cycle between each leaf and its gradient, which keeps both in memory "
        "for good\ncall autograd::grad instead, or clear the gradients when they have been used: set_grad({}) or "
        "zero_grad()");
  }
  autograd::run_backward({.roots = {this, 1},
                          .gradients = {&seed, 1},
                          .retain_graph = options.retain_graph,
                          .create_graph = options.create_graph});
}

Tensor Tensor::detach() const {
  require_defined("detach", *this);
  return raw::alias(*this);
}

namespace {

// Removes a hook by id: its address may change. The handle keeps only the tensor's state alive.
template <class Hooks>
void remove_hook(Hooks& hooks, std::uint64_t id) {
  std::erase_if(hooks, [id](const auto& hook) { return hook.id == id; });
}

template <class Hooks>
std::uint64_t next_id(const Hooks& hooks) {
  return hooks.empty() ? 1 : hooks.back().id + 1;
}

}  // namespace

HookHandle Tensor::register_hook(Callback<Tensor(const Tensor&)> hook) const {
  require_defined("register_hook", *this);
  LOCKSTEP_CHECK(requires_grad(), "register_hook: {} does not require grad", describe(*this));
  History& own = *history(*this);
  auto& hooks = own.node ? own.node->hooks : own.tensor_hooks;
  const std::uint64_t id = next_id(hooks);
  hooks.push_back({id, own.output, std::move(hook)});
  if (own.node) return HookHandle([node = own.node, id] { remove_hook(node->hooks, id); });
  return HookHandle([leaf = *this, id] { remove_hook(history(leaf)->tensor_hooks, id); });
}

namespace autograd {

Tensor root_gradient(const Tensor& root, const Tensor& gradient) {
  LOCKSTEP_CHECK(root.requires_grad(),
                 "backward: {} does not depend on a tensor that requires grad (or was computed under NoGradGuard)",
                 describe(root));
  Tensor seed = gradient;
  if (!seed.defined()) {
    LOCKSTEP_CHECK(root.numel() == 1, "backward: {} has {} elements; reduce it to one, or pass a gradient",
                   describe(root), root.numel());
    seed = raw::full(root.shape(), 1, root.options());
  }
  LOCKSTEP_CHECK(seed.shape() == root.shape() && seed.dtype() == root.dtype() && seed.device() == root.device(),
                 "backward: the gradient is {}, the tensor {}", describe(seed), describe(root));
  return seed;
}

void set_gradient_view(const Tensor& leaf, Tensor view) {
  if (!view.defined()) {  // the leaf may have been frozen in the meantime
    if (History* own = history(leaf)) {
      own->view = Tensor();
      own->view_taker = nullptr;
    }
    return;
  }
  LOCKSTEP_CHECK(leaf.is_leaf() && leaf.requires_grad(), "set_gradient_view: {} is not a leaf that requires grad",
                 describe(leaf));
  LOCKSTEP_CHECK((view.shape() == leaf.shape() && view.dtype() == leaf.dtype() && view.device() == leaf.device() &&
                  view.is_contiguous()),
                 "set_gradient_view: the gradient of {} needs a contiguous tensor like it, got {}", describe(leaf),
                 describe(view));
  History& own = *history(leaf);
  own.view = std::move(view);
  own.view_taker = nullptr;
}

void set_separate_contributions(const Tensor& leaf, bool whole) { ensure_history(leaf).separate_contributions = whole; }

Tensor gradient_view(const Tensor& leaf) {
  const History* own = history(leaf);
  return own ? own->view : Tensor();
}

std::uint32_t gradient_copies(const Tensor& leaf) {
  const History* own = history(leaf);
  return own ? own->copies : 0;
}

HookHandle register_leaf_hook(const Tensor& leaf, Callback<void(Run&)> hook) {
  LOCKSTEP_CHECK(leaf.is_leaf() && leaf.requires_grad(), "register_leaf_hook: {} is not a leaf that requires grad",
                 describe(leaf));
  auto& hooks = history(leaf)->leaf_hooks;
  const std::uint64_t id = next_id(hooks);
  hooks.push_back({id, std::move(hook)});
  return HookHandle([leaf, id] { remove_hook(history(leaf)->leaf_hooks, id); });
}

void register_run_hook(const Tensor& result, Callback<void(Run&)> hook) {
  LOCKSTEP_CHECK(!result.is_leaf(), "register_run_hook: {} is not the result of an operation", describe(result));
  history(result)->node->run_hooks.push_back(std::move(hook));
}

std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         const GradOptions& options) {
  LOCKSTEP_CHECK(options.grad_outputs.empty() || options.grad_outputs.size() == outputs.size(),
                 "grad: {} grad_outputs for {} outputs", options.grad_outputs.size(), outputs.size());
  LOCKSTEP_CHECK(!inputs.empty(), "grad: no inputs given");
  std::vector<Tensor> seeds;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Tensor& output = outputs[i];
    LOCKSTEP_CHECK(output.requires_grad(), "grad: output {} ({}) does not depend on a tensor that requires grad", i,
                   describe(output));
    Tensor seed = options.grad_outputs.empty() ? Tensor() : options.grad_outputs[i];
    LOCKSTEP_CHECK(seed.defined() || output.numel() == 1, "grad: output {} is {}; pass its gradient in grad_outputs", i,
                   describe(output));
    seeds.push_back(seed.defined() ? seed : raw::full(output.shape(), 1, output.options()));
    const Tensor& own = seeds.back();
    LOCKSTEP_CHECK(own.shape() == output.shape() && own.dtype() == output.dtype() && own.device() == output.device(),
                   "grad: grad_outputs {} is {}, the output {}; reshape it, or convert it with .to(...)", i,
                   describe(own), describe(output));
  }
  for (const Tensor& input : inputs)
    LOCKSTEP_CHECK(input.requires_grad(), "grad: input {} does not require grad", describe(input));
  std::vector<Tensor> gradients = run_backward({.roots = outputs,
                                                .gradients = seeds,
                                                .retain_graph = options.retain_graph || options.create_graph,
                                                .create_graph = options.create_graph,
                                                .inputs = inputs});
  for (std::size_t i = 0; i < gradients.size() && !options.allow_unused; ++i)
    LOCKSTEP_CHECK(gradients[i].defined(), "grad: no output depends on input {} ({}); pass .allow_unused = true", i,
                   describe(inputs[i]));
  return gradients;
}

}  // namespace autograd
}  // namespace lockstep
