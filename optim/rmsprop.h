/// \file
/// RMSprop and Adagrad, equivalent to torch.optim.RMSprop and torch.optim.Adagrad.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

struct RMSpropOptions {
  double lr = 1e-2;         ///< learning rate
  double alpha = 0.99;      ///< decay rate of the running mean of squared gradients
  double eps = 1e-8;        ///< added to the square root of that mean
  double weight_decay = 0;  ///< adds weight_decay * parameter to the gradient
  double momentum = 0;      ///< factor of the momentum buffer; 0: no momentum
  bool centered = false;    ///< divides by the standard deviation of the gradient (Graves, 2013)
};

/// A group of parameters with its own options. Options that are not set have the optimizer's values.
struct RMSpropGroup {
  std::vector<nn::Parameter> params = {};             ///< the group's parameters
  std::optional<double> lr = std::nullopt;            ///< learning rate
  std::optional<double> alpha = std::nullopt;         ///< see RMSpropOptions
  std::optional<double> eps = std::nullopt;           ///< see RMSpropOptions
  std::optional<double> weight_decay = std::nullopt;  ///< see RMSpropOptions
  std::optional<double> momentum = std::nullopt;      ///< see RMSpropOptions
  std::optional<bool> centered = std::nullopt;        ///< see RMSpropOptions
};

/// The update of raw::rmsprop_step (tensor/ops/optim_ops_internal.h). (T. Tieleman, G. Hinton, 2012)
///
/// Throws InvalidArgument for a negative or infinite lr, eps, weight_decay or momentum, for alpha outside [0, 1), if there
/// are no parameters, and if a parameter is given twice.
class RMSprop : public Optimizer {
 public:
  explicit RMSprop(const Groups<RMSpropGroup>& params, const RMSpropOptions& options = {});

  using Optimizer::step;
  void step() override;
  /// Adds a group. Throws as the constructor. Schedulers that exist do not change its learning rate.
  void add_param_group(const RMSpropGroup& group);

 private:
  void check_options(std::span<const double> options) const override;

  RMSpropOptions defaults_;
};

struct AdagradOptions {
  double lr = 1e-2;                      ///< learning rate
  double lr_decay = 0;                   ///< step t, counted from 0, has the learning rate lr / (1 + t lr_decay)
  double weight_decay = 0;               ///< adds weight_decay * parameter to the gradient
  double initial_accumulator_value = 0;  ///< the sums of squared gradients start with it
  double eps = 1e-10;                    ///< added to the square root of the sums
};

/// A group of parameters with its own options. Options that are not set have the optimizer's values.
struct AdagradGroup {
  std::vector<nn::Parameter> params = {};                          ///< the group's parameters
  std::optional<double> lr = std::nullopt;                         ///< learning rate
  std::optional<double> lr_decay = std::nullopt;                   ///< see AdagradOptions
  std::optional<double> weight_decay = std::nullopt;               ///< see AdagradOptions
  std::optional<double> initial_accumulator_value = std::nullopt;  ///< see AdagradOptions
  std::optional<double> eps = std::nullopt;                        ///< see AdagradOptions
};

/// sum += g^2, p -= lr / (1 + t lr_decay) g / (sqrt(sum) + eps), with g the gradient plus weight_decay * p.
/// (J. Duchi, E. Hazan, Y. Singer, 2011)
///
/// Throws InvalidArgument for a negative or infinite option, if there are no parameters, and if a parameter is given twice.
class Adagrad : public Optimizer {
 public:
  explicit Adagrad(const Groups<AdagradGroup>& params, const AdagradOptions& options = {});

  using Optimizer::step;
  void step() override;
  /// Adds a group. Throws as the constructor. Schedulers that exist do not change its learning rate.
  void add_param_group(const AdagradGroup& group);

 private:
  void check_options(std::span<const double> options) const override;

  AdagradOptions defaults_;
};

}  // namespace lockstep::optim
