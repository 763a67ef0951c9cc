// What autograd keeps in a tensor's slot, and what parallel/ needs of leaves: places for their gradients, and hooks on
// their completion.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/autograd/node.h"

namespace lockstep::autograd {

// A running backward, as leaf hooks see it.
class Run {
 public:
  // Calls `callback` once, after the last leaf hook of this backward and the callbacks that were added before it. One
  // that a callback adds comes last.
  virtual void at_end(Callback<void()> callback) = 0;

 protected:
  ~Run() = default;
};

struct LeafHook {
  std::uint64_t id;
  Callback<void(Run&)> run;
};

struct History final : AutogradSlot {
  // Of the result of an operation:
  Ref<Node> node;
  std::uint32_t output = 0;
  // Of a leaf:
  bool requires_grad = false;
  bool home_given = false;           // a kernel is writing this backward's first contribution to `home`
  bool whole_contributions = false;  // this backward's are added up before they join a `grad` that is there already
  std::uint32_t copies = 0;          // contributions that had to be copied to `home`, so far
  Tensor grad;
  Tensor home;                           // where the gradient is to stand (a bucket), if anywhere in particular
  std::vector<Node::Hook> tensor_hooks;  // on this backward's gradient, before it joins `grad`
  std::vector<LeafHook> leaf_hooks;      // after it has joined
};

// The tensor's history, null where it has none.
inline History* history(const Tensor& tensor) { return static_cast<History*>(tensor.impl().autograd.get()); }
// The tensor's history, made where it has none.
History& ensure_history(const Tensor& tensor);

// The leaf's gradient will be accumulated in `home` (its shape and dtype, contiguous); undefined: anywhere.
void set_gradient_home(const Tensor& leaf, Tensor home);
Tensor gradient_home(const Tensor& leaf);
// Whether the contributions of one backward to the leaf are added up by themselves before they join the gradient that an
// earlier backward left: (a + b) + (c + d) instead of ((a + b) + c) + d.
void set_whole_contributions(const Tensor& leaf, bool whole);
// Contributions that had to be copied to the leaf's home so far.
std::uint32_t gradient_copies(const Tensor& leaf);
// Calls `hook` in each backward that reaches the leaf, when its gradient is complete.
HookHandle register_leaf_hook(const Tensor& leaf, Callback<void(Run&)> hook);

}  // namespace lockstep::autograd
