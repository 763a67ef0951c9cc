#include "lockstep/autograd/anomaly_internal.h"

#include <algorithm>
#include <string>

#include "lockstep/autograd/ops/functions.h"
#include "lockstep/base/check_internal.h"

namespace lockstep::autograd {

namespace {

bool contains_nan(const Tensor& tensor) { return tensor.defined() && any(isnan(tensor)).item<bool>(); }

// "2 of 12 elements, first at [0, 3]"
std::string nan_elements(const Tensor& tensor) {
  const Tensor places = nonzero(isnan(tensor.to(Device())));
  const std::int64_t dims = tensor.dim();
  std::string text = fmt::format("{} of {} elements", places.size(0), tensor.numel());
  if (dims == 0) return text;
  return fmt::format("{}, first at [{}]", text, fmt::join(places.select(0, 0).to_vector<std::int64_t>(), ", "));
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
    const std::string& module = *node.checked_module;
    throw InvalidArgument(fmt::format(
        "the gradient of input {} is NaN ({}){}\n{}", i, nan_elements(gradients[i]),
        module.empty() ? "" : ", in module " + module,
        received_nan ? "the gradient of its result was NaN already: look at the loss and at what follows the operation"
                     : "the gradient of its result is not NaN: look at the operation and its inputs"));
  }
}

}  // namespace lockstep::autograd
