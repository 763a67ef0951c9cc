// The autograd state of a tensor, and the functions that parallel/ needs: for leaves bucket views for their gradients and
// hooks on the completed gradients, for results hooks on the backwards that include them.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "lockstep/autograd/node.h"

namespace lockstep::autograd {

// The interface of a running backward for hooks.
class Run {
 public:
  // Whether gradients are added to the leaves' grad(); false in autograd::grad.
  virtual bool accumulates() const = 0;
  // Calls `callback` once, after the last leaf hook of this backward and the callbacks added before it. A callback may
  // add another.
  virtual void at_end(Callback<void()> callback) = 0;
  // Calls `callback` once if an exception ends this backward.
  virtual void at_error(Callback<void(const std::exception&)> callback) = 0;

 protected:
  ~Run() = default;
};

struct LeafHook {
  std::uint64_t id;
  Callback<void(Run&)> run;
};

struct History final : AutogradSlot {
  // For the result of an operation:
  Ref<Node> node;
  std::uint32_t output = 0;
  // For a leaf:
  bool requires_grad = false;
  bool separate_contributions = false;  // sum this backward's contributions first, then add the sum to `grad`
  std::uint32_t copies = 0;             // contributions copied to `view` so far
  Tensor grad;
  const void* view_taker = nullptr;      // the backward whose first contribution a kernel writes to `view`
  Tensor view;                           // bucket view for the gradient; undefined if there is none
  std::vector<Node::Hook> tensor_hooks;  // run on this backward's gradient, before it is added to `grad`
  std::vector<LeafHook> leaf_hooks;      // run after the gradient was added to `grad`
};

// The tensor's history; null if it has none.
inline History* history(const Tensor& tensor) { return static_cast<History*>(tensor.impl().autograd.get()); }
// The tensor's history; created if it has none.
History& ensure_history(const Tensor& tensor);

// Sets the bucket view in which the leaf's gradient is accumulated (same shape and dtype, contiguous). An undefined
// tensor removes it.
void set_gradient_view(const Tensor& leaf, Tensor view);
Tensor gradient_view(const Tensor& leaf);
// Whether the contributions of one backward to the leaf are summed before they are added to the gradient of earlier
// backwards: (a + b) + (c + d) instead of ((a + b) + c) + d.
void set_separate_contributions(const Tensor& leaf, bool whole);
// Number of contributions copied to the leaf's bucket view so far.
std::uint32_t gradient_copies(const Tensor& leaf);
// Calls `hook` in each backward that reaches the leaf, when the leaf's gradient is complete.
HookHandle register_leaf_hook(const Tensor& leaf, Callback<void(Run&)> hook);
// Calls `hook` at the beginning of each backward from `result`, or from a tensor that was computed from it: also in one
// that an exception ends before it reaches `result`. The graph owns the hook.
void register_run_hook(const Tensor& result, Callback<void(Run&)> hook);

}  // namespace lockstep::autograd
