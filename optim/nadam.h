/// \file
/// NAdam and RAdam, equivalent to torch.optim.NAdam and torch.optim.RAdam.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

struct NAdamOptions {
  double lr = 2e-3;                     ///< learning rate
  double beta1 = 0.9;                   ///< decay rate of the mean of gradients
  double beta2 = 0.999;                 ///< decay rate of the mean of squared gradients
  double eps = 1e-8;                    ///< added to the square root of that mean
  double weight_decay = 0;              ///< adds weight_decay * p to the gradient
  double momentum_decay = 4e-3;         ///< how fast the momentum approaches beta1
  bool decoupled_weight_decay = false;  ///< each step multiplies parameters by 1 - lr weight_decay instead
};

/// A group of parameters with its own options. Options that are not set have the optimizer's values.
struct NAdamGroup {
  std::vector<nn::Parameter> params = {};                     ///< the group's parameters
  std::optional<double> lr = std::nullopt;                    ///< learning rate
  std::optional<double> beta1 = std::nullopt;                 ///< see NAdamOptions
  std::optional<double> beta2 = std::nullopt;                 ///< see NAdamOptions
  std::optional<double> eps = std::nullopt;                   ///< see NAdamOptions
  std::optional<double> weight_decay = std::nullopt;          ///< see NAdamOptions
  std::optional<double> momentum_decay = std::nullopt;        ///< see NAdamOptions
  std::optional<bool> decoupled_weight_decay = std::nullopt;  ///< see NAdamOptions
};

/// Adam with Nesterov momentum: mu_t = beta1 (1 - 0.96^(t momentum_decay) / 2), p -= lr ((1 - mu_t) g / (1 - P_t) +
/// mu_(t+1) m / (1 - P_(t+1))) / (sqrt(v / (1 - beta2^t)) + eps), with P_t = mu_1 ... mu_t. PyTorch saves P_t as
/// "mu_product"; here it follows from the number of steps and today's options. (T. Dozat, 2016)
///
/// Throws InvalidArgument for a negative or infinite option, for betas outside [0, 1), if there are no parameters, if a
/// parameter is given twice, and for a step in a CUDA graph.
class NAdam : public Optimizer {
 public:
  explicit NAdam(const Groups<NAdamGroup>& params, const NAdamOptions& options = {});

  using Optimizer::step;
  void step() override;
  /// Adds a group. Throws as the constructor. Schedulers that exist do not change its learning rate.
  void add_param_group(const NAdamGroup& group);

 private:
  void check_options(std::span<const double> options) const override;

  NAdamOptions defaults_;
};

struct RAdamOptions {
  double lr = 1e-3;                     ///< learning rate
  double beta1 = 0.9;                   ///< decay rate of the mean of gradients
  double beta2 = 0.999;                 ///< decay rate of the mean of squared gradients
  double eps = 1e-8;                    ///< added to the square root of that mean
  double weight_decay = 0;              ///< adds weight_decay * p to the gradient
  bool decoupled_weight_decay = false;  ///< each step multiplies parameters by 1 - lr weight_decay instead
};

/// A group of parameters with its own options. Options that are not set have the optimizer's values.
struct RAdamGroup {
  std::vector<nn::Parameter> params = {};                     ///< the group's parameters
  std::optional<double> lr = std::nullopt;                    ///< learning rate
  std::optional<double> beta1 = std::nullopt;                 ///< see RAdamOptions
  std::optional<double> beta2 = std::nullopt;                 ///< see RAdamOptions
  std::optional<double> eps = std::nullopt;                   ///< see RAdamOptions
  std::optional<double> weight_decay = std::nullopt;          ///< see RAdamOptions
  std::optional<bool> decoupled_weight_decay = std::nullopt;  ///< see RAdamOptions
};

/// Adam whose first steps, until the variance of the adaptive rate is finite, are those of momentum alone; later ones are
/// multiplied by a rectification. (Liu et al., 2020)
///
/// Throws InvalidArgument as NAdam.
class RAdam : public Optimizer {
 public:
  explicit RAdam(const Groups<RAdamGroup>& params, const RAdamOptions& options = {});

  using Optimizer::step;
  void step() override;
  /// Adds a group. Throws as the constructor. Schedulers that exist do not change its learning rate.
  void add_param_group(const RAdamGroup& group);

 private:
  void check_options(std::span<const double> options) const override;

  RAdamOptions defaults_;
};

}  // namespace lockstep::optim
