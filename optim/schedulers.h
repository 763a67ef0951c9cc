/// \file
/// Learning-rate schedulers. All but ReduceLROnPlateau are in closed form: the rate of step t depends only on t and the
/// rates at construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/base/callback.h"
#include "lockstep/nn/files/state_dict.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

/// Sets the learning rate of every group of an optimizer: at construction to the rate of t = 0, then at each step().
/// The base rate of a group is its rate at the construction of the optimizer's first scheduler, or the rate that set_lr
/// has given it since. The optimizer must outlive the scheduler. A rate set with set_lr holds until the next step() of a
/// scheduler that exists already.
class Scheduler {
 public:
  virtual ~Scheduler() = default;
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// Increments t and sets the optimizer's rates. Call it after the optimizer's step, per batch or per epoch. Throws
  /// InvalidArgument, and changes nothing, if a rate would be negative or not finite.
  virtual void step();
  /// The current rate of the first group, or of group `group`.
  double lr() const { return optimizer_.lr(); }
  double lr(std::size_t group) const { return optimizer_.lr(group); }
  std::int64_t steps() const { return t_; }  ///< number of steps so far

  /// "last_epoch" (i64: t, PyTorch's name) and "base_lrs" (f64, one for each group), and the state of
  /// ReduceLROnPlateau.
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
  friend class ReduceLROnPlateau;
  friend class SequentialLR;
  virtual double rate(double base, std::int64_t t) const = 0;
  // The rates of all groups at step t. Throws InvalidArgument, naming `op`, for a rate that is negative or not finite.
  std::vector<double> rates(const char* op, const std::vector<double>& base, std::int64_t t) const;
  void set_rates(const std::vector<double>& rates);
  // Sets other options of the optimizer at step t.
  virtual void set_others(Optimizer&, std::int64_t) const {}
  // Further state. Calling the result of prepare_own loads it and cannot fail.
  virtual void save_own(StateDict&) const {}
  virtual Callback<void()> prepare_own(const StateReader&) { return {}; }

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

struct MultiStepLROptions {
  std::vector<std::int64_t> milestones = {};  ///< steps of the decays, increasing; required
  double gamma = 0.1;                         ///< factor of each decay
};

/// base gamma^n, with n the number of milestones that are at most t. Throws InvalidArgument for milestones that decrease
/// or a negative gamma.
class MultiStepLR : public Scheduler {
 public:
  explicit MultiStepLR(Optimizer& optimizer, const MultiStepLROptions& options);

 private:
  double rate(double base, std::int64_t t) const override;
  MultiStepLROptions options_;
};

struct ExponentialLROptions {
  double gamma = -1;  ///< factor of each step; required
};

/// base gamma^t. Throws InvalidArgument for a negative gamma.
class ExponentialLR : public Scheduler {
 public:
  explicit ExponentialLR(Optimizer& optimizer, const ExponentialLROptions& options);

 private:
  double rate(double base, std::int64_t t) const override;
  ExponentialLROptions options_;
};

struct PolynomialLROptions {
  std::int64_t total_iters = 5;  ///< number of steps from the base rate down to 0
  double power = 1.0;            ///< exponent
};

/// base (1 - min(t, total_iters) / total_iters)^power. Throws InvalidArgument for total_iters below 1 or a negative power.
class PolynomialLR : public Scheduler {
 public:
  explicit PolynomialLR(Optimizer& optimizer, const PolynomialLROptions& options = {});

 private:
  double rate(double base, std::int64_t t) const override;
  PolynomialLROptions options_;
};

/// base lr_lambda(t), where the function depends on t alone: it is not saved.
class LambdaLR : public Scheduler {
 public:
  explicit LambdaLR(Optimizer& optimizer, Callback<double(std::int64_t t)> lr_lambda);

 private:
  double rate(double base, std::int64_t t) const override;
  Callback<double(std::int64_t)> lr_lambda_;
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

struct CosineAnnealingWarmRestartsOptions {
  std::int64_t t_0 = 0;     ///< number of steps of the first cycle; required
  std::int64_t t_mult = 1;  ///< each cycle is this many times as long as the one before
  double eta_min = 0;       ///< the lowest rate
};

/// CosineAnnealingLR that starts again from the base rate after each cycle. (I. Loshchilov, F. Hutter, "SGDR", 2017.)
/// Throws InvalidArgument for t_0 or t_mult below 1 or a negative eta_min.
class CosineAnnealingWarmRestarts : public Scheduler {
 public:
  explicit CosineAnnealingWarmRestarts(Optimizer& optimizer, const CosineAnnealingWarmRestartsOptions& options);

 private:
  double rate(double base, std::int64_t t) const override;
  CosineAnnealingWarmRestartsOptions options_;
};

/// The curve between two rates of OneCycleLR.
enum class AnnealStrategy : std::uint8_t { kCos, kLinear };

struct OneCycleLROptions {
  double max_lr = 0;                                      ///< the highest rate, of all groups; required
  std::int64_t total_steps = 0;                           ///< number of steps of the cycle; required
  double pct_start = 0.3;                                 ///< fraction of the steps in which the rate rises
  AnnealStrategy anneal_strategy = AnnealStrategy::kCos;  ///< kCos or kLinear
  bool cycle_momentum = true;                             ///< the momentum, or beta1, falls while the rate rises
  double base_momentum = 0.85;                            ///< the lowest momentum
  double max_momentum = 0.95;                             ///< the highest momentum
  double div_factor = 25;                                 ///< the first rate is max_lr / div_factor
  double final_div_factor = 1e4;                          ///< the last rate is the first one divided by it
  bool three_phase = false;  ///< the rate falls as slowly as it rose, to the first one, and then to the last one
};

/// The rate rises from max_lr / div_factor to max_lr and falls far below the first rate, whatever the base rates. With
/// cycle_momentum, "momentum" or the first of "betas" of all groups moves against it. In a SequentialLR the momentum does
/// not change. Step total_steps, after the last optimizer step, keeps the last rate, which PyTorch extrapolates. (L. Smith,
/// N. Topin, "Super-Convergence", 2018.) Throws InvalidArgument for max_lr, div_factor or
/// final_div_factor that are not above 0, total_steps below 1, pct_start outside [0, 1], pct_start total_steps of 1,
/// momentum outside [0, 1), for cycle_momentum with an optimizer that has no momentum, and in a step after total_steps.
class OneCycleLR : public Scheduler {
 public:
  explicit OneCycleLR(Optimizer& optimizer, const OneCycleLROptions& options);

 private:
  double rate(double base, std::int64_t t) const override;
  void set_others(Optimizer& optimizer, std::int64_t t) const override;
  double at(std::int64_t t, double first, double peak, double last) const;
  OneCycleLROptions options_;
};

/// Whether a metric is to fall or to rise.
enum class PlateauMode : std::uint8_t { kMin, kMax };
/// Whether the threshold of an improvement is a fraction of the best metric, or a difference to it.
enum class ThresholdMode : std::uint8_t { kRel, kAbs };

struct ReduceLROnPlateauOptions {
  PlateauMode mode = PlateauMode::kMin;                ///< kMin for a loss, kMax for an accuracy
  double factor = 0.1;                                 ///< factor of each reduction; below 1
  std::int64_t patience = 10;                          ///< number of bad steps after which the next one reduces
  double threshold = 1e-4;                             ///< smaller improvements do not count
  ThresholdMode threshold_mode = ThresholdMode::kRel;  ///< kRel or kAbs
  std::int64_t cooldown = 0;                           ///< number of steps after a reduction that do not count as bad
  double min_lr = 0;                                   ///< the lowest rate
  double eps = 1e-8;                                   ///< smaller reductions are left out
};

/// Multiplies the rates by factor when the metric has not improved for more than `patience` steps. The metric must be the
/// same on all ranks: use group->mean(loss). Throws InvalidArgument for a factor outside [0, 1), and negative options.
class ReduceLROnPlateau : public Scheduler {
 public:
  explicit ReduceLROnPlateau(Optimizer& optimizer, const ReduceLROnPlateauOptions& options = {});
  void step(double metric);  ///< reduces the rates if the metric did not improve
  void step() override;      ///< throws InvalidArgument: a step needs the metric

 private:
  double rate(double base, std::int64_t) const override { return base; }
  void save_own(StateDict& dict) const override;
  Callback<void()> prepare_own(const StateReader& reader) override;
  bool is_better(double metric) const;

  struct State {
    double best;
    std::int64_t bad_steps = 0, cooldown = 0;
  };
  ReduceLROnPlateauOptions options_;
  State state_;
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
