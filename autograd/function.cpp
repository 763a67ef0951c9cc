#include "lockstep/autograd/function.h"

#include <algorithm>

#include "lockstep/base/check_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::autograd {

void Context::save_for_backward(const std::vector<Tensor>& tensors) {
  entries_.clear();
  for (const Tensor& tensor : tensors) entries_.push_back({tensor, tensor.defined() ? tensor.version() : 0});
}

Tensor Context::saved(std::size_t index) const {
  LOCKSTEP_CHECK(index < entries_.size(), "saved: index {}, but {} tensors were saved for backward", index,
                 entries_.size());
  const Entry& entry = entries_[index];
  LOCKSTEP_CHECK(!entry.tensor.defined() || entry.tensor.version() == entry.version,
                 "saved: {} was changed in place after it was saved for backward (version {}, saved at {})",
                 describe(entry.tensor), entry.tensor.version(), entry.version);
  return entry.output >= 0 && node_ ? node_->output(static_cast<std::size_t>(entry.output)) : entry.tensor;
}

// The node of a user-defined operation. The node owns the context, which has a pointer back to the node.
class FunctionNode final : public Node {
 public:
  FunctionNode(const char* op, std::shared_ptr<Context> context, std::vector<bool> is_tensor, UserBackward backward)
      : Node(op), context_(std::move(context)), is_tensor_(std::move(is_tensor)), backward_(std::move(backward)) {
    context_->node_ = this;
    saves_tensors_ = std::ranges::any_of(context_->entries_, [](const auto& entry) { return entry.tensor.defined(); });
    for (const Context::Entry& entry : context_->entries_) Saved(entry.tensor);  // throws for inference tensors
  }

  // Finds the saved tensors that forward returned, and saves them as outputs of this node.
  void save_outputs(const std::vector<Tensor>& results) {
    for (Context::Entry& entry : context_->entries_) {
      for (std::size_t i = 0; i < results.size(); ++i) {
        if (!entry.tensor.defined() || entry.tensor.ref() != results[i].ref()) continue;
        entry.output = static_cast<int>(i);
        entry.tensor = outputs[i].saved = raw::alias(entry.tensor);
        outputs[i].version = entry.version;
      }
    }
  }

  Gradients run(Tensors& grads, const Needs& needs) override {
    const std::size_t inputs = edges.size();  // the Tensor arguments
    context_->wanted_ = 0;
    for (std::size_t i = 0; i < inputs && i < 64; ++i) context_->wanted_ |= std::uint64_t{needs[i]} << i;
    Gradients gradients = backward_(*context_, grads);
    if (gradients.size() == inputs) return gradients;
    LOCKSTEP_CHECK(gradients.size() == is_tensor_.size(), "returned {} gradients for {} tensors among {} arguments",
                   gradients.size(), inputs, is_tensor_.size());
    Gradients of_tensors;
    for (std::size_t i = 0; i < is_tensor_.size(); ++i) {
      if (is_tensor_[i]) of_tensors.push_back(gradients[i]);
    }
    return of_tensors;
  }
  void release() override {
    if (!saves_tensors_) return;
    context_.reset();
    for (OutputInfo& info : outputs) info.saved = Tensor();
  }
  bool released() const override { return !context_; }

 private:
  std::shared_ptr<Context> context_;
  std::vector<bool> is_tensor_;  // for each argument of forward
  UserBackward backward_;
  bool saves_tensors_;
};

std::vector<Tensor> record_function(const char* name, std::shared_ptr<Context> context, std::vector<Tensor> outputs,
                                    const std::vector<Tensor>& inputs, const std::vector<bool>& is_tensor,
                                    UserBackward backward) {
  if (!detail::should_record(inputs)) return outputs;
  auto* const node = new FunctionNode(name, std::move(context), is_tensor, std::move(backward));
  auto owner = Ref<Node>::adopt(node);
  for (const Tensor& input : inputs) detail::add_edge(*node, input);
  // An output may also be an input or a saved tensor. A new handle gives the output a history of its own.
  std::vector<Tensor> results;
  for (const Tensor& output : outputs) results.push_back(raw::alias(output));
  detail::attach(owner, results, false);
  node->save_outputs(outputs);
  return results;
}

}  // namespace lockstep::autograd
