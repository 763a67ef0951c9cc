#include <cmath>

#include "lockstep/autograd/autograd.h"
#include "lockstep/autograd/ops/functions.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::autograd {

namespace {

using TensorFunction = Callback<Tensor(const std::vector<Tensor>&)>;

// Fixed weights that reduce an output to one number. They differ, so that gradients in the wrong positions are found.
Tensor weights_like(const Tensor& out) {
  Tensor weights = raw::linspace(0.5, 1.5, out.numel(), {.dtype = kFloat64});
  return raw::reshape(weights, out.shape());
}

double weighted_sum(const TensorFunction& fn, const std::vector<Tensor>& inputs) {
  const NoGradGuard no_grad;
  const Tensor out = fn(inputs);
  return raw::sum(raw::mul(out, weights_like(out))).item().to_double();
}

// The central difference (f(x + h) - f(x - h)) / 2h for one element x, which is restored afterwards.
double difference(const TensorFunction& fn, const std::vector<Tensor>& inputs, double& element, double step) {
  const double value = element;
  element = value + step;
  const double above = weighted_sum(fn, inputs);
  element = value - step;
  const double below = weighted_sum(fn, inputs);
  element = value;
  return (above - below) / (2 * step);
}

std::vector<Tensor> requiring_grad(std::vector<Tensor> tensors) {
  std::erase_if(tensors, [](const Tensor& tensor) { return !tensor.requires_grad(); });
  return tensors;
}

bool check(const TensorFunction& fn, const std::vector<Tensor>& inputs, const GradcheckOptions& options,
           const char* order) {
  const EnableGradGuard recording;
  const Tensor out = fn(inputs);
  const std::vector<Tensor> checked = requiring_grad(inputs);
  LOCKSTEP_CHECK(!checked.empty() && out.requires_grad(),
                 "gradcheck: no input requires grad, or the result does not depend on one");
  const auto gradients = grad(std::vector<Tensor>{out}, checked,
                              {.grad_outputs = {weights_like(out)}, .retain_graph = true, .allow_unused = true});
  for (std::size_t i = 0, next = 0; i < inputs.size(); ++i) {
    if (!inputs[i].requires_grad()) continue;
    const Tensor& gradient = gradients[next++];
    const Tensor from_backward =
        gradient.defined() ? raw::contiguous(gradient) : raw::zeros(inputs[i].shape(), {.dtype = kFloat64});
    for (std::int64_t j = 0; j < inputs[i].numel(); ++j) {
      double& element = inputs[i].data<double>()[j];
      const double numeric = difference(fn, inputs, element, options.eps);
      const double analytic = from_backward.data<double>()[j];
      if (std::abs(analytic - numeric) <= options.atol + options.rtol * std::abs(numeric)) continue;
      if (!options.raise_exception) return false;
      throw InvalidArgument(
          fmt::format("gradcheck: {} order, input {}, element {} (x = {}): backward gives {}, differences give {}; "
                      "correct the backward of the operation, or set .raise_exception = false to get false",
                      order, i, j, element, analytic, numeric));
    }
  }
  return true;
}

}  // namespace

bool gradcheck(const Callback<Tensor(const std::vector<Tensor>&)>& fn, const std::vector<Tensor>& inputs,
               const GradcheckOptions& options) {
  for (const Tensor& input : inputs) {
    if (!input.requires_grad()) continue;
    LOCKSTEP_CHECK(input.dtype() == kFloat64 && input.is_contiguous() && input.is_leaf(),
                   "gradcheck: inputs must be contiguous f64 leaves, got {}", describe(input));
  }
  if (!check(fn, inputs, options, "first")) return false;
  if (!options.second_order) return true;
  // The gradient as a function of the inputs and of the output's gradient.
  const Tensor out = fn(inputs);
  std::vector<Tensor> all = inputs;
  all.push_back(raw::add(weights_like(out), raw::full({}, 0.25, {.dtype = kFloat64})));
  all.back().requires_grad_();
  const TensorFunction gradient = [&](const std::vector<Tensor>& in) {
    const std::vector<Tensor> arguments(in.begin(), in.end() - 1);
    // Recording is off for the differences, so they run the unrecorded backward. An operation with both a recorded and
    // an unrecorded backward must return the same gradient from both.
    const bool record = grad_mode();
    const EnableGradGuard recording;
    const auto gradients = grad(std::vector<Tensor>{fn(arguments)}, requiring_grad(arguments),
                                {.grad_outputs = {in.back()}, .create_graph = record, .allow_unused = true});
    std::vector<Tensor> flat;
    for (const Tensor& each : gradients) {
      if (each.defined()) flat.push_back(each.reshape({-1}));
    }
    return cat(flat);
  };
  return check(gradient, all, options, "second");
}

}  // namespace lockstep::autograd
