/// \file
/// Learning-rate schedulers in closed form: the rate of step t depends only on t and the rates at construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/nn/state_dict.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/tensor/callback.h"

namespace lockstep::optim {

/// Sets the learning rate of every group of an optimizer: at construction to the rate of t = 0, then at each step().
/// The base rate of a group is its rate at the construction of the optimizer's first scheduler. The optimizer must
/// outlive the scheduler. A rate set with set_lr holds until the next step().
class Scheduler {
 public:
  virtual ~Scheduler() = default;
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// Increments t and sets the optimizer's rates. Call it after the optimizer's step, per batch or per epoch. Throws
  /// InvalidArgument, and changes nothing, if a rate would be negative or not finite.
  void step();
  /// The current rate of the first group, or of group `group`.
  double lr() const { return optimizer_.lr(); }
  double lr(std::size_t group) const { return optimizer_.lr(group); }
  std::int64_t steps() const { return t_; }  ///< number of steps so far

  /// "last_epoch" (i64: t, PyTorch's name) and "base_lrs" (f64, one for each group).
  StateDict state_dict() const;
  /// Loads both and sets the optimizer's rates. Throws InvalidArgument naming the key, and changes nothing, if the
  /// state does not match or gives a rate that is negative or not finite.
  void load_state_dict(const StateDict& state) { prepare_load(state)(); }
  /// Checks and copies `state`. Calling the result loads the copy and cannot fail. `groups` maps the optimizer's groups
  /// to saved groups; by default they are the same.
  Callback<void()> prepare_load(const StateDict& state, const SavedGroups* groups = nullptr);

 protected:
  explicit Scheduler(Optimizer& optimizer);
  void apply();  ///< sets the rates of t = 0; called last in derived constructors, because it calls rate()

 private:
  friend class SequentialLR;
  virtual double rate(double base, std::int64_t t) const = 0;
  // The rates of all groups at step t. Throws InvalidArgument, naming `op`, for a rate that is negative or not finite.
  std::vector<double> rates(const char* op, const std::vector<double>& base, std::int64_t t) const;
  void set_rates(const std::vector<double>& rates);

  Optimizer& optimizer_;
  std::vector<double> base_;  // of each group
  std::int64_t t_ = 0;
};

struct StepLROptions {
  std::int64_t step_size = 0;  ///< steps between decays; required
  double gamma = 0.1;          ///< factor of each decay
};

/// base gamma^floor(t / step_size). Throws InvalidArgument for step_size below 1 or a negative gamma.
class StepLR : public Scheduler {
 public:
  explicit StepLR(Optimizer& optimizer, const StepLROptions& options);

 private:
  double rate(double base, std::int64_t t) const override;
  StepLROptions options_;
};

struct CosineAnnealingLROptions {
  std::int64_t t_max = 0;  ///< number of steps from the base rate down to eta_min; required
  double eta_min = 0;      ///< the lowest rate
};

/// eta_min + (base - eta_min) (1 + cos(pi t / t_max)) / 2. After t_max the rate rises again, as in PyTorch.
/// (I. Loshchilov, F. Hutter, "SGDR", 2017, without restarts.) Throws InvalidArgument for t_max below 1 or a negative
/// eta_min.
class CosineAnnealingLR : public Scheduler {
 public:
  explicit CosineAnnealingLR(Optimizer& optimizer, const CosineAnnealingLROptions& options);

 private:
  double rate(double base, std::int64_t t) const override;
  CosineAnnealingLROptions options_;
};

struct LinearWarmupOptions {
  std::int64_t steps = 0;  ///< number of warmup steps; required
};

/// base min(1, (t + 1) / steps). Throws InvalidArgument for steps below 1.
class LinearWarmup : public Scheduler {
 public:
  explicit LinearWarmup(Optimizer& optimizer, const LinearWarmupOptions& options);

 private:
  double rate(double base, std::int64_t t) const override;
  LinearWarmupOptions options_;
};

/// Runs schedulers one after another: scheduler i + 1 starts, at its step 0, at step milestones[i]. Warmup, then a cosine:
///
///     LinearWarmup warmup(optimizer, {.steps = 100});
///     CosineAnnealingLR cosine(optimizer, {.t_max = 1900, .eta_min = 1e-4});
///     SequentialLR schedule(optimizer, {&warmup, &cosine}, {100});
///
/// Call step() and save state only on this scheduler. The others must outlive it. Throws InvalidArgument if a scheduler
/// is null or belongs to another optimizer, if the milestones are not increasing and at least 1, or if their number is
/// not schedulers.size() - 1.
class SequentialLR : public Scheduler {
 public:
  SequentialLR(Optimizer& optimizer, std::vector<const Scheduler*> schedulers, std::vector<std::int64_t> milestones);

 private:
  double rate(double base, std::int64_t t) const override;
  std::vector<const Scheduler*> schedulers_;
  std::vector<std::int64_t> milestones_;
};

}  // namespace lockstep::optim
