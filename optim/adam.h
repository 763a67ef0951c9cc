/// \file
/// Adam and AdamW, equivalent to torch.optim.Adam and torch.optim.AdamW.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

struct AdamOptions {
  double lr = 1e-3;         ///< learning rate
  double beta1 = 0.9;       ///< decay rate of the first moment (running mean of gradients)
  double beta2 = 0.999;     ///< decay rate of the second moment (running mean of squared gradients)
  double eps = 1e-8;        ///< added to the square root of the second moment
  double weight_decay = 0;  ///< adds weight_decay * parameter to the gradient
  bool amsgrad = false;     ///< divides by the largest second moment so far (Reddi et al., 2018)
};

struct AdamWOptions {
  double lr = 1e-3;            ///< learning rate
  double beta1 = 0.9;          ///< decay rate of the first moment (running mean of gradients)
  double beta2 = 0.999;        ///< decay rate of the second moment (running mean of squared gradients)
  double eps = 1e-8;           ///< added to the square root of the second moment
  double weight_decay = 0.01;  ///< each step multiplies parameters by 1 - lr weight_decay
  bool amsgrad = false;        ///< divides by the largest second moment so far (Reddi et al., 2018)
};

/// A group of parameters with its own options. Options that are not set have the optimizer's values.
struct AdamGroup {
  std::vector<nn::Parameter> params = {};             ///< the group's parameters
  std::optional<double> lr = std::nullopt;            ///< learning rate
  std::optional<double> beta1 = std::nullopt;         ///< see AdamOptions
  std::optional<double> beta2 = std::nullopt;         ///< see AdamOptions
  std::optional<double> eps = std::nullopt;           ///< see AdamOptions
  std::optional<double> weight_decay = std::nullopt;  ///< see AdamOptions, AdamWOptions
  std::optional<bool> amsgrad = std::nullopt;         ///< see AdamOptions
};
using AdamWGroup = AdamGroup;  ///< groups of AdamW

/// The common base of Adam and AdamW: the update of raw::adam_step (tensor/ops/optim_ops_internal.h).
class AdamBase : public Optimizer {
 public:
  using Optimizer::step;
  void step() override;
  /// Adds a group. Throws as the constructor. Schedulers that exist do not change its learning rate.
  void add_param_group(const AdamGroup& group);

 protected:
  AdamBase(const char* type, bool decoupled, const Groups<AdamGroup>& groups, const AdamOptions& defaults);

 private:
  void check_options(std::span<const double> options) const override;

  AdamOptions defaults_;
  bool decoupled_;
};

/// Adam. weight_decay is L2 regularisation: it is added to the gradient.
///
/// Throws InvalidArgument for a negative or infinite lr, eps or weight_decay, for betas outside [0, 1), if there are no
/// parameters, and if a parameter is given twice.
class Adam : public AdamBase {
 public:
  explicit Adam(const Groups<AdamGroup>& params, const AdamOptions& options = {});
};

/// AdamW. weight_decay multiplies the parameter by 1 - lr weight_decay, separately from the gradient. Throws as Adam.
class AdamW : public AdamBase {
 public:
  explicit AdamW(const Groups<AdamWGroup>& params, const AdamWOptions& options = {});
};

}  // namespace lockstep::optim
