// Learning-rate schedules in closed form: the rate of step t follows from t and the rates at construction alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/nn/state_dict.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/tensor/callback.h"

namespace lockstep::optim {

// Sets the learning rate of every group of an optimizer: at construction to that of t = 0, then once per step(). The
// optimizer has to outlive it. A rate set by hand in between lasts until the next step().
class Scheduler {
 public:
  virtual ~Scheduler() = default;
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // t = t + 1, and the optimizer gets the new rates. Called after the optimizer's step, per batch or per
  // epoch. Throws InvalidArgument, and changes nothing, where a rate would not be a finite number of at
  // least 0.
  void step();
  // The current rate of the first group, or of group `group`.
  double lr() const { return optimizer_.lr(); }
  double lr(std::size_t group) const { return optimizer_.lr(group); }
  std::int64_t steps() const { return t_; }  // taken so far

  // "last_epoch" (i64: t, by PyTorch's name) and "base_lrs" (f64, one for each group).
  StateDict state_dict() const;
  // Takes over both and sets the optimizer's rates. Throws InvalidArgument naming the key, and changes nothing, where
  // the state does not fit or gives a rate that is not a finite number of at least 0.
  void load_state_dict(const StateDict& state) { prepare_load(state)(); }
  // Checks and copies; calling the result takes over and cannot fail.
  Callback<void()> prepare_load(const StateDict& state);

 protected:
  explicit Scheduler(Optimizer& optimizer);
  void apply();  // derived constructors call it last: it calls rate()

 private:
  virtual double rate(double base, std::int64_t t) const = 0;
  // The rates of all groups at step t. Throws InvalidArgument, in the name of `op`, for one that no
  // optimizer takes.
  std::vector<double> rates(const char* op, const std::vector<double>& base, std::int64_t t) const;
  void set_rates(const std::vector<double>& rates);

  Optimizer& optimizer_;
  std::vector<double> base_;  // each group's rate at construction
  std::int64_t t_ = 0;
};

struct StepLROptions {
  std::int64_t step_size = 0;  // has to be given
  double gamma = 0.1;          // what each step multiplies the rate by
};

// base gamma^floor(t / step_size). Throws InvalidArgument for step_size below 1 or a negative gamma.
class StepLR : public Scheduler {
 public:
  explicit StepLR(Optimizer& optimizer, const StepLROptions& options);

 private:
  double rate(double base, std::int64_t t) const override;
  StepLROptions options_;
};

struct CosineAnnealingLROptions {
  std::int64_t t_max = 0;  // steps from the base rate down to eta_min; has to be given
  double eta_min = 0;      // the lowest rate
};

// eta_min + (base - eta_min) (1 + cos(pi t / t_max)) / 2; past t_max it rises again, as PyTorch's (I. Loshchilov,
// F. Hutter, "SGDR", 2017, without restarts). Throws InvalidArgument for t_max below 1 or a negative eta_min.
class CosineAnnealingLR : public Scheduler {
 public:
  explicit CosineAnnealingLR(Optimizer& optimizer, const CosineAnnealingLROptions& options);

 private:
  double rate(double base, std::int64_t t) const override;
  CosineAnnealingLROptions options_;
};

struct LinearWarmupOptions {
  std::int64_t steps = 0;  // has to be given
};

// base min(1, (t + 1) / steps). Throws InvalidArgument for steps below 1.
class LinearWarmup : public Scheduler {
 public:
  explicit LinearWarmup(Optimizer& optimizer, const LinearWarmupOptions& options);

 private:
  double rate(double base, std::int64_t t) const override;
  LinearWarmupOptions options_;
};

}  // namespace lockstep::optim
