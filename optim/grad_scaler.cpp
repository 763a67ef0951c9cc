#include "lockstep/optim/grad_scaler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_set>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops/autocast_internal.h"
#include "lockstep/autograd/ops/functions.h"
#include "lockstep/nn/module_internal.h"
#include "lockstep/nn/utilities.h"
#include "lockstep/optim/state_internal.h"
#include "lockstep/optim/step_internal.h"
#include "lockstep/tensor/memory/capture_internal.h"

namespace lockstep::optim {

namespace {

constexpr const char* kPassMode = "pass the training mode, too: scaler.step(optimizer, run)";

// A scale and its reciprocal are factors in f32.
bool is_scale(double value) {
  return value >= std::numeric_limits<float>::min() && value <= std::numeric_limits<float>::max();
}

void check_options(const char* where, const GradScalerOptions& options) {
  LOCKSTEP_CHECK(is_scale(options.init_scale), "{}: the scale is {}, expected a normal number of f32, above 0", where,
                 options.init_scale);
  LOCKSTEP_CHECK(options.growth_factor >= 1 && std::isfinite(options.growth_factor),
                 "{}: growth_factor is {}, expected a finite number of at least 1", where, options.growth_factor);
  LOCKSTEP_CHECK(options.backoff_factor > 0 && options.backoff_factor <= 1,
                 "{}: backoff_factor is {}, expected a number in (0, 1]", where, options.backoff_factor);
  LOCKSTEP_CHECK(options.growth_interval >= 1, "{}: growth_interval is {}, expected 1 or more", where,
                 options.growth_interval);
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options) : options_(options), scale_(options.init_scale) {
  check_options("GradScaler", options);
}

Tensor GradScaler::scale(const Tensor& loss) const {
  if (!options_.enabled) return loss;
  capture::forbid("GradScaler::scale", loss.device());
  return in_f32(loss) * scale_;
}
double GradScaler::get_scale() const { return options_.enabled ? scale_ : 1; }

bool GradScaler::is_finite(double norm) { return std::isfinite(norm); }
GradScaler::Entry* GradScaler::find(const Optimizer& optimizer) {
  const auto found = std::ranges::find(entries_, &optimizer, &Entry::optimizer);
  return found == entries_.end() ? nullptr : &*found;
}
bool GradScaler::is_unscaled(const Optimizer& optimizer) { return !options_.enabled || find(optimizer); }

void GradScaler::divide(const Optimizer& optimizer, const std::vector<nn::Parameter>& of_run) {
  LOCKSTEP_CHECK(!find(optimizer),
                 "GradScaler: unscale_ or step was called for this optimizer before; call update() after each step");
  std::unordered_set<const nn::TensorSlot*> known;
  for (const nn::Parameter& parameter : of_run) known.insert(parameter.id());
  std::vector<Tensor> gradients;
  for (const nn::Parameter& parameter : optimizer.parameters()) {
    require_here(parameter);
    LOCKSTEP_CHECK(
        known.contains(parameter.id()),
        "GradScaler: the optimizer has a parameter that is not in run.parameters(), whose gradient would not "
        "be checked; give it an optimizer of its own, and call scaler.step(that_optimizer)");
    const Tensor gradient = parameter.master().grad();
    if (!gradient.defined()) continue;
    LOCKSTEP_CHECK(gradient.dtype() != kFloat16,
                   "GradScaler: a gradient is f16, which has no room to divide small ones; keep the parameters in f32, "
                   "and compute in f16 with AutocastGuard");
    gradients.push_back(gradient);
  }
  entries_.push_back({.optimizer = &optimizer});
  const NoGradGuard no_grad;
  for (const Tensor& gradient : gradients) gradient.mul_(1 / scale_);
}

void GradScaler::unscale_(Optimizer& optimizer) {
  if (!options_.enabled) return;
  const std::vector<nn::Parameter> parameters = optimizer.parameters();
  for (const nn::Parameter& parameter : parameters) require_here(parameter);
  nn::refuse_parts("GradScaler", parameters, kPassMode);
  for (const nn::Parameter& parameter : parameters)
    LOCKSTEP_CHECK(
        parameter.sharding() == nn::Sharding::kNone,
        "GradScaler: the optimizer has this rank's part of a model, whose gradients alone do not say whether "
        "all are finite; {}",
        kPassMode);
  divide(optimizer, parameters);
  find(optimizer)->is_finite = is_finite(nn::clip_grad_norm_(parameters, kNoLimit));
}

bool GradScaler::step(Optimizer& optimizer) {
  if (!is_unscaled(optimizer)) unscale_(optimizer);
  return step_if_finite(optimizer);
}

bool GradScaler::step_if_finite(Optimizer& optimizer) {
  Entry* const entry = find(optimizer);
  LOCKSTEP_CHECK(!entry || !entry->has_stepped,
                 "GradScaler: step was called for this optimizer before; call update() after each step");
  const bool steps = !entry || entry->is_finite;
  if (steps) optimizer.step();
  if (entry) entry->has_stepped = true;
  return steps;
}

void GradScaler::update() {
  if (!options_.enabled) return;
  LOCKSTEP_CHECK(!entries_.empty(), "GradScaler: update without a step; call step(optimizer) before");
  const bool all_finite = std::ranges::all_of(entries_, &Entry::is_finite);
  entries_.clear();
  finite_steps_ = all_finite ? finite_steps_ + 1 : 0;
  const bool grows = finite_steps_ == options_.growth_interval;
  if (all_finite && !grows) return;
  if (grows) finite_steps_ = 0;
  const double next = scale_ * (grows ? options_.growth_factor : options_.backoff_factor);
  if (is_scale(next)) scale_ = next;
}

StateDict GradScaler::state_dict() const {
  if (!options_.enabled) return {};
  return {{"scale", to_tensor(scale_)},
          {"growth_factor", to_tensor(options_.growth_factor)},
          {"backoff_factor", to_tensor(options_.backoff_factor)},
          {"growth_interval", to_tensor<std::int64_t>(options_.growth_interval)},
          {"_growth_tracker", to_tensor(finite_steps_)}};
}

void GradScaler::load_state_dict(const StateDict& state) {
  if (!options_.enabled) return;
  const StateReader reader(state);
  GradScalerOptions options = options_;
  options.init_scale = reader.number("scale");
  options.growth_factor = reader.number("growth_factor");
  options.backoff_factor = reader.number("backoff_factor");
  options.growth_interval = static_cast<int>(std::min<std::int64_t>(reader.count("growth_interval"), 1 << 30));
  const std::int64_t finite_steps = reader.count("_growth_tracker");
  reader.require_all_read();
  check_options("load_state_dict", options);
  LOCKSTEP_CHECK(finite_steps < options.growth_interval,
                 "load_state_dict: _growth_tracker is {}, expected less than growth_interval, {}", finite_steps,
                 options.growth_interval);
  options_ = options;
  scale_ = options.init_scale;
  finite_steps_ = finite_steps;
  entries_.clear();
}

}  // namespace lockstep::optim
