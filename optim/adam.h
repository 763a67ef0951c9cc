// Adam and AdamW, as torch.optim.Adam and torch.optim.AdamW.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

struct AdamOptions {
  double lr = 1e-3;         // learning rate
  double beta1 = 0.9;       // decay of the mean of gradients
  double beta2 = 0.999;     // decay of the mean of their squares
  double eps = 1e-8;        // added to the root of the second mean
  double weight_decay = 0;  // times the parameter, added to the gradient
};

struct AdamWOptions {
  double lr = 1e-3;            // learning rate
  double beta1 = 0.9;          // decay of the mean of gradients
  double beta2 = 0.999;        // decay of the mean of their squares
  double eps = 1e-8;           // added to the root of the second mean
  double weight_decay = 0.01;  // parameters shrink by the factor 1 - lr weight_decay
};

// Parameters with options of their own; what is not given is taken from the optimizer's options.
struct AdamGroup {
  std::vector<nn::Parameter> params = {};             // the group's parameters
  std::optional<double> lr = std::nullopt;            // learning rate
  std::optional<double> beta1 = std::nullopt;         // see AdamOptions
  std::optional<double> beta2 = std::nullopt;         // see AdamOptions
  std::optional<double> eps = std::nullopt;           // see AdamOptions
  std::optional<double> weight_decay = std::nullopt;  // see AdamOptions, AdamWOptions
};
using AdamWGroup = AdamGroup;  // the same

// The common base of Adam and AdamW: the update of raw::adam_step (tensor/optim_ops_internal.h).
class AdamBase : public Optimizer {
 public:
  void step() override;

 protected:
  AdamBase(const char* name, bool decoupled, const Groups<AdamGroup>& groups, const AdamOptions& defaults);

 private:
  std::vector<Option> options(std::size_t group) override;
  void check_options(std::span<const double> values) const override;
  std::span<const char* const> buffer_names() const override;
  bool saves_steps() const override { return true; }
  double& group_lr(std::size_t group) override { return options_[group].lr; }

  const char* name_;
  bool decoupled_;
  std::vector<AdamOptions> options_;  // one for each group
};

// weight_decay is added to the gradient: L2 regularisation.
//
// Throws InvalidArgument for a negative or infinite lr, eps or weight_decay, for betas outside [0, 1), without
// parameters, and for a parameter given twice.
class Adam : public AdamBase {
 public:
  explicit Adam(const Groups<AdamGroup>& params, const AdamOptions& options = {});
};

// weight_decay shrinks the parameter by the factor 1 - lr weight_decay, apart from the gradient. Errors as for Adam.
class AdamW : public AdamBase {
 public:
  explicit AdamW(const Groups<AdamWGroup>& params, const AdamWOptions& options = {});
};

}  // namespace lockstep::optim
