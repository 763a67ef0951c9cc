#include "lockstep/autograd/function.h"

#include <algorithm>

#include "lockstep/autograd/history_internal.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/ops_internal.h"

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
  if (entry.output < 0 || outputs_.empty()) return entry.tensor;
  return outputs_[static_cast<std::size_t>(entry.output)];
}

namespace {

// A closure, and whether its forward saved tensors.
template <class F>
struct FunctionBackward {
  F closure;
  bool saves;

  bool saves_tensors() const { return saves; }
  Gradients operator()(Tensors& grads, const Needs& needs) { return closure(grads, needs); }
};

}  // namespace

std::vector<Tensor> record_function(const char* name, std::shared_ptr<Context> context, std::vector<Tensor> outputs,
                                    const std::vector<Tensor>& inputs, const std::vector<bool>& is_tensor,
                                    Callback<Gradients(Context&, Tensors&)> backward) {
  if (!detail::should_record(inputs)) return outputs;
  for (Context::Entry& entry : context->entries_) {
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!entry.tensor.defined() || entry.tensor.ref() != outputs[i].ref()) continue;
      entry.output = static_cast<int>(i);
      entry.tensor = raw::alias(entry.tensor);
    }
  }
  // An output may also be an input or a saved tensor. A new handle gives the output a history of its own.
  for (Tensor& output : outputs) output = raw::alias(output);

  // The closure needs its node, to restore the history of saved outputs. The pointer is set after recording.
  struct Link {
    Node* node = nullptr;
  };
  auto link = std::make_shared<Link>();
  auto closure = [context, is_tensor,
                  backward = std::make_shared<Callback<Gradients(Context&, Tensors&)>>(std::move(backward)),
                  link](Tensors& grads, const Needs& needs) {
    context->wanted_ = 0;
    std::size_t tensors = 0;
    for (const bool tensor : is_tensor) tensors += tensor;
    for (std::size_t i = 0; i < tensors && i < 64; ++i) context->wanted_ |= std::uint64_t{needs[i]} << i;
    context->outputs_.resize(link->node->outputs.size());
    for (const Context::Entry& entry : context->entries_) {
      if (entry.output < 0) continue;
      const auto index = static_cast<std::size_t>(entry.output);
      OutputInfo& info = link->node->outputs[index];
      info.saved = entry.tensor;
      info.version = entry.version;
      context->outputs_[index] = link->node->output(index);
      info.saved = Tensor();
    }
    Gradients gradients = (*backward)(*context, grads);
    context->outputs_.clear();  // breaks the reference cycle with this node
    if (gradients.size() == tensors) return gradients;
    LOCKSTEP_CHECK(gradients.size() == is_tensor.size(), "returned {} gradients for {} tensors among {} arguments",
                   gradients.size(), tensors, is_tensor.size());
    Gradients of_tensors;
    for (std::size_t i = 0; i < is_tensor.size(); ++i) {
      if (is_tensor[i]) of_tensors.push_back(gradients[i]);
    }
    return of_tensors;
  };
  const bool saves = std::ranges::any_of(context->entries_, [](const auto& entry) { return entry.tensor.defined(); });
  outputs =
      record_all(name, std::move(outputs), inputs, FunctionBackward<decltype(closure)>{std::move(closure), saves});
  for (const Tensor& output : outputs) {
    if (output.requires_grad()) link->node = history(output)->node.get();
  }
  return outputs;
}

}  // namespace lockstep::autograd
