/// \file
/// Lion: the sign of a momentum, with one state tensor for each parameter.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

struct LionOptions {
  double lr = 1e-4;         ///< learning rate: every element moves by it in every step
  double beta1 = 0.9;       ///< weight of the momentum in the update
  double beta2 = 0.99;      ///< decay rate of the momentum
  double weight_decay = 0;  ///< each step multiplies parameters by 1 - lr weight_decay
};

/// A group of parameters with its own options. Options that are not set have the optimizer's values.
struct LionGroup {
  std::vector<nn::Parameter> params = {};             ///< the group's parameters
  std::optional<double> lr = std::nullopt;            ///< learning rate
  std::optional<double> beta1 = std::nullopt;         ///< see LionOptions
  std::optional<double> beta2 = std::nullopt;         ///< see LionOptions
  std::optional<double> weight_decay = std::nullopt;  ///< see LionOptions
};

/// p -= lr (sign(beta1 m + (1 - beta1) g) + weight_decay p), then m = beta2 m + (1 - beta2) g. The state m is saved as
/// "exp_avg". (X. Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023)
///
/// Throws InvalidArgument for a negative or infinite lr or weight_decay, for betas outside [0, 1), if there are no
/// parameters, and if a parameter is given twice.
class Lion : public Optimizer {
 public:
  explicit Lion(const Groups<LionGroup>& params, const LionOptions& options = {});

  using Optimizer::step;
  void step() override;
  /// Adds a group. Throws as the constructor. Schedulers that exist do not change its learning rate.
  void add_param_group(const LionGroup& group);

 private:
  void check_options(std::span<const double> options) const override;

  LionOptions defaults_;
};

}  // namespace lockstep::optim
