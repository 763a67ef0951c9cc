#include "lockstep/autograd/anomaly_internal.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/autograd/ops/functions.h"
#include "lockstep/base/check_internal.h"

namespace lockstep::autograd {

namespace {

bool contains_nan(const Tensor& tensor) { return tensor.defined() && any(isnan(tensor)).item<bool>(); }

// "2 of 12 elements, first at [0, 3]"
std::string nan_elements(const Tensor& tensor) {
  const Tensor is_nan = isnan(tensor).to(Device()).contiguous();
  const std::span<const bool> flags(static_cast<const bool*>(is_nan.raw_data()),
                                    static_cast<std::size_t>(is_nan.numel()));
  std::string text = fmt::format("{} of {} elements", std::ranges::count(flags, true), tensor.numel());
  if (tensor.dim() == 0) return text;
  std::vector<std::int64_t> place(static_cast<std::size_t>(tensor.dim()));
  std::int64_t rest = std::ranges::find(flags, true) - flags.begin();
  for (int dim = tensor.dim() - 1; dim >= 0; rest /= tensor.size(dim), --dim)
    place[static_cast<std::size_t>(dim)] = rest % tensor.size(dim);
  return fmt::format("{}, first at [{}]", text, fmt::join(place, ", "));
}

}  // namespace

bool has_nan(const Tensors& gradients) {
  const NoGradGuard no_grad;
  return std::ranges::any_of(gradients, contains_nan);
}

void check_anomaly(const Node& node, bool received_nan, const Gradients& gradients) {
  const NoGradGuard no_grad;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!contains_nan(gradients[i])) continue;
    const bool has_module = node.checked_module && !node.checked_module->empty();
    throw InvalidArgument(fmt::format(
        "the gradient of input {} is NaN ({}){}\n{}", i, nan_elements(gradients[i]),
        has_module ? ", in module " + *node.checked_module : "",
        received_nan ? "the gradient of its result was NaN already: look at the loss and at what follows the operation"
                     : "the gradient of its result is not NaN: look at the operation and its inputs"));
  }
}

}  // namespace lockstep::autograd
