#include "lockstep/autograd/split_backward_internal.h"

#include <set>
#include <utility>

#include "lockstep/base/check_internal.h"

namespace lockstep::autograd {

SplitBackward::SplitBackward(const Tensor& root, const Tensor& gradient, const Tensor& input) {
  const Tensor seed = root_gradient(root, gradient);
  if (input.defined()) {
    LOCKSTEP_CHECK(input.is_leaf() && input.requires_grad(),
                   "split backward: the input is {}, expected a leaf that requires grad; call "
                   "detach().requires_grad_() before forward",
                   describe(input));
    PartI part;
    input_gradient_ =
        run_backward({.roots = {&root, 1}, .gradients = {&seed, 1}, .inputs = {&input, 1}, .part_i = &part})[0];
    nodes_ = std::move(part.rest);
    if (part.reaches_input) return;
  }
  root_ = root;
  gradient_ = seed;
}

void SplitBackward::run() {
  LOCKSTEP_CHECK(!has_run_,
                 "split backward: part W has already run; make a SplitBackward for each backward, and call its run() "
                 "once");
  has_run_ = true;
  std::vector<DeferredNode> nodes = std::move(nodes_);
  const Tensor root = std::move(root_), gradient = std::move(gradient_);
  if (root.defined())
    run_backward({.roots = {&root, 1}, .gradients = {&gradient, 1}});
  else
    run_backward({.part_w = nodes});
}

std::int64_t SplitBackward::gradient_bytes() const {
  std::set<const Storage*> counted;
  std::int64_t bytes = 0;
  const auto count = [&](const Tensor& gradient) {
    if (!gradient.defined()) return;
    const Storage& storage = *gradient.impl().storage;
    if (counted.insert(&storage).second) bytes += static_cast<std::int64_t>(storage.bytes());
  };
  count(gradient_);
  for (const DeferredNode& node : nodes_) {
    for (const Tensor& gradient : node.grads) count(gradient);
  }
  return bytes;
}

}  // namespace lockstep::autograd
