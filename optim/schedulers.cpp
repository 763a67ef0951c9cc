#include "lockstep/optim/schedulers.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "lockstep/optim/state_internal.h"
#include "lockstep/tensor/check_internal.h"

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
  for (std::size_t group = 0; group < rates.size(); ++group) optimizer_.set_lr(group, rates[group]);
}

void Scheduler::apply() { set_rates(rates("scheduler", base_, t_)); }

void Scheduler::step() {
  const std::vector<double> next = rates("Scheduler::step", base_, t_ + 1);
  ++t_;
  set_rates(next);
}

StateDict Scheduler::state_dict() const { return {{"last_epoch", to_tensor(t_)}, {"base_lrs", to_tensor(base_)}}; }

Callback<void()> Scheduler::prepare_load(const StateDict& state, const SavedGroups* groups) {
  const StateReader reader(state);
  const std::int64_t t = reader.count("last_epoch");
  const std::vector<double> saved = reader.list<double>("base_lrs");
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
  return [this, t, rates = rates("load_state_dict", base, t), base = std::move(base)]() mutable {
    t_ = t;
    base_ = std::move(base);
    set_rates(rates);
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
