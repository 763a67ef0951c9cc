// The schedulers that do more than compute a rate: OneCycleLR cycles the momentum, ReduceLROnPlateau has a state.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "lockstep/base/check_internal.h"
#include "lockstep/optim/schedulers.h"
#include "lockstep/optim/state_internal.h"

namespace lockstep::optim {

OneCycleLR::OneCycleLR(Optimizer& optimizer, const OneCycleLROptions& options)
    : Scheduler(optimizer), options_(options) {
  for (const auto& [name, value] : {std::pair{"max_lr", options.max_lr},
                                    {"div_factor", options.div_factor},
                                    {"final_div_factor", options.final_div_factor}})
    LOCKSTEP_CHECK(value > 0 && detail::is_option(value), "OneCycleLR: {} is {}, expected a finite number above 0",
                   name, value);
  LOCKSTEP_CHECK(options.total_steps >= 1, "OneCycleLR: total_steps is {}, expected at least 1", options.total_steps);
  LOCKSTEP_CHECK(options.pct_start >= 0 && options.pct_start <= 1, "OneCycleLR: pct_start is {}, expected 0 to 1",
                 options.pct_start);
  LOCKSTEP_CHECK(
      options.pct_start * static_cast<double>(options.total_steps) != 1,
      "OneCycleLR: pct_start is {} and total_steps is {}, whose product must not be 1: the rate would have to "
      "rise within no step; choose another pct_start",
      options.pct_start, options.total_steps);
  detail::require_option("OneCycleLR", "base_momentum", options.base_momentum, 1);
  detail::require_option("OneCycleLR", "max_momentum", options.max_momentum, 1);
  LOCKSTEP_CHECK(!options.cycle_momentum || optimizer.has_momentum(),
                 "OneCycleLR: the optimizer has neither momentum nor betas; set .cycle_momentum = false");
  apply();
}

// The value at step t of a number that moves from `first` to `peak` and on to `last`, by way of `first` in three phases.
double OneCycleLR::at(std::int64_t t, double first, double peak, double last) const {
  const auto total = static_cast<double>(options_.total_steps);
  const double step = std::min(static_cast<double>(t), total - 1);
  const double rise = options_.pct_start * total;
  const double ends[] = {rise - 1, options_.three_phase ? 2 * rise - 2 : total - 1, total - 1};
  const double values[] = {first, peak, options_.three_phase ? first : last, last};
  const std::size_t final_phase = options_.three_phase ? 2 : 1;
  std::size_t phase = 0;
  while (phase < final_phase && step > ends[phase]) ++phase;
  const double begin = phase == 0 ? 0 : ends[phase - 1], from = values[phase], to = values[phase + 1];
  const double fraction = (step - begin) / (ends[phase] - begin);
  if (options_.anneal_strategy == AnnealStrategy::kLinear) return from + (to - from) * fraction;
  return to + (from - to) / 2 * (1 + std::cos(std::numbers::pi * fraction));
}

double OneCycleLR::rate(double, std::int64_t t) const {
  LOCKSTEP_CHECK(t <= options_.total_steps, "OneCycleLR: step {} of a cycle of {} steps; construct it with more steps",
                 t, options_.total_steps);
  const double first = options_.max_lr / options_.div_factor;
  return at(t, first, options_.max_lr, first / options_.final_div_factor);
}

void OneCycleLR::set_others(Optimizer& optimizer, std::int64_t t) const {
  if (options_.cycle_momentum)
    optimizer.set_momentum(at(t, options_.max_momentum, options_.base_momentum, options_.max_momentum));
}

ReduceLROnPlateau::ReduceLROnPlateau(Optimizer& optimizer, const ReduceLROnPlateauOptions& options)
    : Scheduler(optimizer), options_(options), state_{.best = (options.mode == PlateauMode::kMin ? 1 : -1) *
                                                              std::numeric_limits<double>::infinity()} {
  const char* name = "ReduceLROnPlateau";
  detail::require_option(name, "factor", options.factor, 1);
  detail::require_option(name, "threshold", options.threshold);
  detail::require_option(name, "min_lr", options.min_lr);
  detail::require_option(name, "eps", options.eps);
  detail::require_option(name, "patience", static_cast<double>(options.patience));
  detail::require_option(name, "cooldown", static_cast<double>(options.cooldown));
  for (std::size_t group = 0; group < base_.size(); ++group) base_[group] = optimizer.lr(group);
}

bool ReduceLROnPlateau::is_better(double metric) const {
  const double sign = options_.mode == PlateauMode::kMin ? -1 : 1, best = state_.best;
  const double goal = options_.threshold_mode == ThresholdMode::kRel ? best * (1 + sign * options_.threshold)
                                                                     : best + sign * options_.threshold;
  return sign * metric > sign * goal;
}

void ReduceLROnPlateau::step(double metric) {
  State& s = state_;
  ++t_;
  if (is_better(metric))
    s.best = metric, s.bad_steps = 0;
  else
    ++s.bad_steps;
  if (s.cooldown > 0) --s.cooldown, s.bad_steps = 0;
  for (std::size_t group = 0; group < base_.size(); ++group) {
    base_[group] = optimizer_.lr(group);
    const double reduced = std::max(base_[group] * options_.factor, options_.min_lr);
    if (s.bad_steps > options_.patience && base_[group] - reduced > options_.eps) base_[group] = reduced;
  }
  if (s.bad_steps > options_.patience) s.cooldown = options_.cooldown, s.bad_steps = 0;
  set_rates(base_);
}

void ReduceLROnPlateau::step() {
  throw InvalidArgument("ReduceLROnPlateau: step() needs the metric: scheduler.step(validation_loss)");
}

void ReduceLROnPlateau::save_own(StateDict& dict) const {
  dict.insert("best", to_tensor(state_.best));
  dict.insert("num_bad_epochs", to_tensor(state_.bad_steps));
  dict.insert("cooldown_counter", to_tensor(state_.cooldown));
}

Callback<void()> ReduceLROnPlateau::prepare_own(const StateReader& reader) {
  const State loaded = {.best = reader.number("best"),
                        .bad_steps = reader.count("num_bad_epochs"),
                        .cooldown = reader.count("cooldown_counter")};
  return [this, loaded] { state_ = loaded; };
}

}  // namespace lockstep::optim
