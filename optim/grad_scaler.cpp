#include "lockstep/optim/grad_scaler.h"

#include <algorithm>
#include <cmath>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops/functions.h"
#include "lockstep/nn/module_internal.h"
#include "lockstep/nn/utilities.h"
#include "lockstep/optim/state_internal.h"

namespace lockstep::optim {

namespace {

constexpr const char* kPassMode = "pass the training mode, too: scaler.step(optimizer, run)";

// The loss and the gradients are multiplied in f32.
bool is_scale(double value) { return value > 0 && value <= std::numeric_limits<float>::max(); }

void check_options(const char* where, const GradScalerOptions& options) {
  const auto check = [&](const char* name, double value) {
    LOCKSTEP_CHECK(is_scale(value), "{}: {} is {}, expected a finite number above 0", where, name, value);
  };
  check("init_scale", options.init_scale);
  check("growth_factor", options.growth_factor);
  check("backoff_factor", options.backoff_factor);
  LOCKSTEP_CHECK(options.growth_interval >= 1, "{}: growth_interval is {}, expected 1 or more", where,
                 options.growth_interval);
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options) : options_(options), scale_(options.init_scale) {
  check_options("GradScaler", options);
}

Tensor GradScaler::scale(const Tensor& loss) const { return options_.enabled ? loss * scale_ : loss; }
double GradScaler::get_scale() const { return options_.enabled ? scale_ : 1; }

GradScaler::Entry* GradScaler::find(const Optimizer& optimizer) {
  const auto found = std::ranges::find(entries_, &optimizer, &Entry::optimizer);
  return found == entries_.end() ? nullptr : &*found;
}
bool GradScaler::is_unscaled(const Optimizer& optimizer) { return !options_.enabled || find(optimizer); }

bool GradScaler::begin_unscale(const Optimizer& optimizer) {
  if (!options_.enabled) return false;
  LOCKSTEP_CHECK(!find(optimizer),
                 "GradScaler: unscale_ or step was called for this optimizer before; call update() after "
                 "each step");
  const NoGradGuard no_grad;
  for (const nn::Parameter& parameter : optimizer.parameters()) {
    const Tensor grad = parameter.master().grad();
    if (grad.defined()) grad.mul_(1 / scale_);
  }
  return true;
}

void GradScaler::record(const Optimizer& optimizer, double norm) {
  entries_.push_back({.optimizer = &optimizer, .is_finite = std::isfinite(norm)});
}

void GradScaler::unscale_(Optimizer& optimizer) {
  const std::vector<nn::Parameter> parameters = optimizer.parameters();
  nn::refuse_parts("GradScaler", parameters, kPassMode);
  for (const nn::Parameter& parameter : parameters)
    LOCKSTEP_CHECK(
        parameter.sharding() == nn::Sharding::kNone,
        "GradScaler: the optimizer has this rank's part of a model, whose gradients alone do not say whether "
        "all are finite; {}",
        kPassMode);
  if (begin_unscale(optimizer)) record(optimizer, nn::clip_grad_norm_(parameters, kNoLimit));
}

bool GradScaler::step(Optimizer& optimizer) {
  if (!is_unscaled(optimizer)) unscale_(optimizer);
  return step_if_finite(optimizer);
}

bool GradScaler::step_if_finite(Optimizer& optimizer) {
  Entry* const entry = find(optimizer);
  if (entry) {
    LOCKSTEP_CHECK(!entry->has_stepped,
                   "GradScaler: step was called for this optimizer before; call update() after each step");
    entry->has_stepped = true;
    if (!entry->is_finite) return false;
  }
  optimizer.step();
  return true;
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
  return {{"scale", to_tensor(scale_)},
          {"growth_factor", to_tensor(options_.growth_factor)},
          {"backoff_factor", to_tensor(options_.backoff_factor)},
          {"growth_interval", to_tensor<std::int64_t>(options_.growth_interval)},
          {"_growth_tracker", to_tensor(finite_steps_)}};
}

void GradScaler::load_state_dict(const StateDict& state) {
  const StateReader reader(state);
  GradScalerOptions options = options_;
  options.init_scale = reader.number("scale");
  options.growth_factor = reader.number("growth_factor");
  options.backoff_factor = reader.number("backoff_factor");
  options.growth_interval = static_cast<int>(std::min<std::int64_t>(reader.count("growth_interval"), 1 << 30));
  const std::int64_t finite_steps = reader.count("_growth_tracker");
  reader.require_all_read();
  check_options("load_state_dict", options);
  options_ = options;
  scale_ = options.init_scale;
  finite_steps_ = finite_steps;
}

}  // namespace lockstep::optim
