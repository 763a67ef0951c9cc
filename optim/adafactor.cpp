#include "lockstep/optim/adafactor.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/autograd/ops/functions.h"
#include "lockstep/optim/composed_step_internal.h"

namespace lockstep::optim {
namespace {

struct AdafactorOption {
  enum Index { kLr, kBeta2Decay, kEps1, kEps2, kD, kWeightDecay };
};
enum Buffer : std::size_t { kRowVar, kColVar, kVariance };

constexpr double kOfDType = -1;  // eps1: the machine epsilon of the parameter's dtype

// The options of a group, in the order of Layout::options.
std::vector<double> merge(const AdafactorGroup& group, const AdafactorOptions& defaults) {
  return {group.lr.value_or(defaults.lr),
          defaults.beta2_decay,
          defaults.eps1.value_or(kOfDType),
          defaults.eps2,
          defaults.d,
          group.weight_decay.value_or(defaults.weight_decay)};
}

double root_mean_square(const Tensor& x) {
  return norm(x).item<double>() / std::sqrt(static_cast<double>(std::max<std::int64_t>(x.numel(), 1)));
}

// mean = mean + weight (value - mean)
void move_towards(const Tensor& mean, const Tensor& value, double weight) { mean.mul_(1 - weight).add_(value, weight); }

}  // namespace

Adafactor::Adafactor(const Groups<AdafactorGroup>& params, const AdafactorOptions& options)
    : Optimizer({.type = "Adafactor",
                 .options = {"lr", "beta2_decay", "eps", "eps", "d", "weight_decay"},
                 .buffers = {"row_var", "col_var", "variance"},
                 .saves_steps = true,
                 .optional_buffers = 3,
                 .own_shapes = true}),
      defaults_(options) {
  Adafactor::check_options(merge({}, options));
  for (const AdafactorGroup& group : params) add_param_group(group);
  require_parameters();
}

void Adafactor::add_param_group(const AdafactorGroup& group) {
  require_whole_parameters("Adafactor", group.params);
  nn::refuse_parts("Adafactor", group.params, "checkpoints of stages cannot hold row_var; use another optimizer");
  add_group(group.params, merge(group, defaults_));
}

void Adafactor::check_options(std::span<const double> options) const {
  using enum AdafactorOption::Index;
  detail::require_option("Adafactor", "lr", options[kLr]);
  LOCKSTEP_CHECK(options[kBeta2Decay] <= 0 && std::isfinite(options[kBeta2Decay]),
                 "Adafactor: beta2_decay is {}, expected a finite number of at most 0", options[kBeta2Decay]);
  if (options[kEps1] != kOfDType) detail::require_option("Adafactor", "eps1", options[kEps1]);
  detail::require_option("Adafactor", "eps2", options[kEps2]);
  LOCKSTEP_CHECK(options[kD] >= 1 && std::isfinite(options[kD]), "Adafactor: d is {}, expected at least 1",
                 options[kD]);
  detail::require_option("Adafactor", "weight_decay", options[kWeightDecay]);
}

Shape Adafactor::buffer_shape(const Tensor& parameter, std::size_t buffer) const {
  Shape shape = parameter.shape();
  if (buffer != kVariance && shape.dim() > 1) shape[shape.size() - (buffer == kRowVar ? 1 : 2)] = 1;
  return shape;
}

void Adafactor::step() {
  using enum AdafactorOption::Index;
  composed_step("Adafactor", slots_, [this](Slot& slot, const Tensor& p, const Tensor& grad) {
    const std::span<const double> o = options(slot.group);
    const double t = static_cast<double>(slot.steps), weight = std::pow(t, o[kBeta2Decay]);
    const double eps1 = o[kEps1] != kOfDType    ? o[kEps1]
                        : p.dtype() == kFloat32 ? std::numeric_limits<float>::epsilon()
                                                : std::numeric_limits<double>::epsilon();
    const double alpha = std::max(o[kEps2], root_mean_square(p)) * std::min(o[kLr], 1 / std::sqrt(t));
    if (o[kWeightDecay] != 0) p.mul_(1 - o[kLr] * o[kWeightDecay]);
    const auto state = [&](Buffer b) -> const Tensor& {
      fit(slot.buffers[b], p, buffer_shape(p, b));
      return slot.buffers[b];
    };
    const Tensor squares = grad * grad;
    Tensor estimate;
    if (p.dim() > 1) {
      const Tensor &row = state(kRowVar), &column = state(kColVar);
      move_towards(row, mean(squares, {-1}, true), weight);
      move_towards(column, mean(squares, {-2}, true), weight);
      estimate = row * column / clamp_min(mean(row, {-2}, true), eps1);
    } else {
      estimate = state(kVariance);
      move_towards(estimate, squares, weight);
    }
    const Tensor update = rsqrt(clamp_min(estimate, eps1 * eps1)) * grad;
    p.add_(update, -alpha / std::max(1.0, root_mean_square(update) / o[kD]));
  });
}

}  // namespace lockstep::optim
