#include "lockstep/optim/schedulers.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "lockstep/base/check_internal.h"
#include "lockstep/optim/state_internal.h"

namespace lockstep::optim {

Scheduler::Scheduler(Optimizer& optimizer) : optimizer_(optimizer) {
  for (std::size_t group = 0; group < optimizer.group_count(); ++group) base_.push_back(optimizer.initial_lr(group));
}

std::vector<double> Scheduler::rates(const char* op, const std::vector<double>& base, std::int64_t t) const {
  std::vector<double> result;
  for (std::size_t group = 0; group < base.size(); ++group) {
    result.push_back(rate(base[group], t));
    LOCKSTEP_CHECK(
        detail::is_option(result.back()),
        "{}: the rate of group {} at step {} is {}, expected a finite number of at least 0; \"base_lrs\" is {}", op,
        group, t, result.back(), base[group]);
  }
  return result;
}

void Scheduler::set_rates(const std::vector<double>& rates) {
  for (std::size_t group = 0; group < rates.size(); ++group) optimizer_.groups_[group].options[0] = rates[group];
}

void Scheduler::apply() {
  set_rates(rates("scheduler", base_, t_));
  set_others(optimizer_, t_);
}

void Scheduler::step() {
  const std::vector<double> next = rates("Scheduler::step", base_, t_ + 1);
  ++t_;
  set_rates(next);
  set_others(optimizer_, t_);
}

StateDict Scheduler::state_dict() const {
  StateDict dict = {{"last_epoch", to_tensor(t_)}, {"base_lrs", to_tensor(base_)}};
  save_own(dict);
  return dict;
}

Callback<void()> Scheduler::prepare_load(const StateDict& state, const SavedGroups* groups) {
  const StateReader reader(state);
  const std::int64_t t = reader.count("last_epoch");
  const std::vector<double> saved = reader.list<double>("base_lrs");
  Callback<void()> load_own = prepare_own(reader);
  reader.require_all_read();
  for (double lr : saved) detail::require_option("load_state_dict", "base_lrs", lr);
  const std::size_t count = groups ? groups->count : base_.size();
  LOCKSTEP_CHECK(saved.size() == count, "load_state_dict: \"base_lrs\" has {} groups, the optimizer {}", saved.size(),
                 count);
  std::vector<double> base = saved;
  if (groups) {
    LOCKSTEP_CHECK(groups->sources.size() == base_.size(),
                   "load_state_dict: the scheduler's optimizer has {} groups, the optimizer that is loaded with it {}; "
                   "pass the scheduler's own optimizer",
                   base_.size(), groups->sources.size());
    base = base_;
    for (std::size_t group = 0; group < base.size(); ++group)
      base[group] =
          common_value(groups->sources[group], base[group], [&](std::size_t source) { return saved[source]; });
  }
  return [this, t, rates = rates("load_state_dict", base, t), base = std::move(base),
          load_own = std::move(load_own)]() mutable {
    t_ = t;
    base_ = std::move(base);
    set_rates(rates);
    set_others(optimizer_, t_);
    if (load_own) load_own();
  };
}

StepLR::StepLR(Optimizer& optimizer, const StepLROptions& options) : Scheduler(optimizer), options_(options) {
  LOCKSTEP_CHECK(options.step_size >= 1, "StepLR: step_size is {}, expected at least 1", options.step_size);
  detail::require_option("StepLR", "gamma", options.gamma);
  apply();
}

double StepLR::rate(double base, std::int64_t t) const {
  return base * std::pow(options_.gamma, static_cast<double>(t / options_.step_size));
}

MultiStepLR::MultiStepLR(Optimizer& optimizer, const MultiStepLROptions& options)
    : Scheduler(optimizer), options_(options) {
  LOCKSTEP_CHECK(!options.milestones.empty() && std::ranges::is_sorted(options.milestones),
                 "MultiStepLR: {} milestones, expected one or more, in increasing order", options.milestones.size());
  detail::require_option("MultiStepLR", "gamma", options.gamma);
  apply();
}

double MultiStepLR::rate(double base, std::int64_t t) const {
  const auto passed = std::ranges::upper_bound(options_.milestones, t) - options_.milestones.begin();
  return base * std::pow(options_.gamma, static_cast<double>(passed));
}

ExponentialLR::ExponentialLR(Optimizer& optimizer, const ExponentialLROptions& options)
    : Scheduler(optimizer), options_(options) {
  detail::require_option("ExponentialLR", "gamma", options.gamma);
  apply();
}

double ExponentialLR::rate(double base, std::int64_t t) const {
  return base * std::pow(options_.gamma, static_cast<double>(t));
}

PolynomialLR::PolynomialLR(Optimizer& optimizer, const PolynomialLROptions& options)
    : Scheduler(optimizer), options_(options) {
  LOCKSTEP_CHECK(options.total_iters >= 1, "PolynomialLR: total_iters is {}, expected at least 1", options.total_iters);
  detail::require_option("PolynomialLR", "power", options.power);
  apply();
}

double PolynomialLR::rate(double base, std::int64_t t) const {
  const auto total = static_cast<double>(options_.total_iters);
  return base * std::pow(1 - std::min(static_cast<double>(t), total) / total, options_.power);
}

LambdaLR::LambdaLR(Optimizer& optimizer, Callback<double(std::int64_t)> lr_lambda)
    : Scheduler(optimizer), lr_lambda_(std::move(lr_lambda)) {
  LOCKSTEP_CHECK(lr_lambda_, "LambdaLR: the function is empty");
  apply();
}

double LambdaLR::rate(double base, std::int64_t t) const { return base * lr_lambda_(t); }

CosineAnnealingLR::CosineAnnealingLR(Optimizer& optimizer, const CosineAnnealingLROptions& options)
    : Scheduler(optimizer), options_(options) {
  LOCKSTEP_CHECK(options.t_max >= 1, "CosineAnnealingLR: t_max is {}, expected at least 1", options.t_max);
  detail::require_option("CosineAnnealingLR", "eta_min", options.eta_min);
  apply();
}

double CosineAnnealingLR::rate(double base, std::int64_t t) const {
  const double angle = std::numbers::pi * static_cast<double>(t) / static_cast<double>(options_.t_max);
  return options_.eta_min + (base - options_.eta_min) * (1 + std::cos(angle)) / 2;
}

CosineAnnealingWarmRestarts::CosineAnnealingWarmRestarts(Optimizer& optimizer,
                                                         const CosineAnnealingWarmRestartsOptions& options)
    : Scheduler(optimizer), options_(options) {
  LOCKSTEP_CHECK(options.t_0 >= 1 && options.t_mult >= 1,
                 "CosineAnnealingWarmRestarts: t_0 is {}, t_mult is {}, expected at least 1", options.t_0,
                 options.t_mult);
  detail::require_option("CosineAnnealingWarmRestarts", "eta_min", options.eta_min);
  apply();
}

double CosineAnnealingWarmRestarts::rate(double base, std::int64_t t) const {
  std::int64_t cycle = options_.t_0;
  if (options_.t_mult == 1) t %= cycle;
  for (; t >= cycle; cycle *= options_.t_mult) t -= cycle;
  const double angle = std::numbers::pi * static_cast<double>(t) / static_cast<double>(cycle);
  return options_.eta_min + (base - options_.eta_min) * (1 + std::cos(angle)) / 2;
}

LinearWarmup::LinearWarmup(Optimizer& optimizer, const LinearWarmupOptions& options)
    : Scheduler(optimizer), options_(options) {
  LOCKSTEP_CHECK(options.steps >= 1, "LinearWarmup: steps is {}, expected at least 1", options.steps);
  apply();
}

double LinearWarmup::rate(double base, std::int64_t t) const {
  return t + 1 >= options_.steps ? base : base * static_cast<double>(t + 1) / static_cast<double>(options_.steps);
}

SequentialLR::SequentialLR(Optimizer& optimizer, std::vector<const Scheduler*> schedulers,
                           std::vector<std::int64_t> milestones)
    : Scheduler(optimizer), schedulers_(std::move(schedulers)), milestones_(std::move(milestones)) {
  LOCKSTEP_CHECK(schedulers_.size() == milestones_.size() + 1,
                 "SequentialLR: {} schedulers and {} milestones, expected one milestone fewer than schedulers",
                 schedulers_.size(), milestones_.size());
  for (std::size_t i = 0; i < schedulers_.size(); ++i)
    LOCKSTEP_CHECK(schedulers_[i] && &schedulers_[i]->optimizer_ == &optimizer,
                   "SequentialLR: scheduler {} is null or of another optimizer; construct it with this optimizer", i);
  for (const Scheduler* scheduler : schedulers_)
    LOCKSTEP_CHECK(!dynamic_cast<const ReduceLROnPlateau*>(scheduler),
                   "SequentialLR: ReduceLROnPlateau has no schedule of its own; step it by itself after the others");
  for (std::size_t i = 0; i < milestones_.size(); ++i)
    LOCKSTEP_CHECK(milestones_[i] > (i == 0 ? 0 : milestones_[i - 1]),
                   "SequentialLR: milestone {} is {}, expected increasing numbers of at least 1", i, milestones_[i]);
  apply();
}

double SequentialLR::rate(double base, std::int64_t t) const {
  const auto passed = std::ranges::upper_bound(milestones_, t) - milestones_.begin();
  const auto i = static_cast<std::size_t>(passed);
  return schedulers_[i]->rate(base, i == 0 ? t : t - milestones_[i - 1]);
}

}  // namespace lockstep::optim
