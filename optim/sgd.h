/// \file
/// Stochastic gradient descent with momentum, equivalent to torch.optim.SGD.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

struct SGDOptions {
  double lr = 1e-3;         ///< learning rate
  double momentum = 0;      ///< factor of the momentum buffer; 0: no momentum
  double dampening = 0;     ///< the gradient is added to the buffer times 1 - dampening
  double weight_decay = 0;  ///< adds weight_decay * parameter to the gradient
  bool nesterov = false;    ///< Nesterov momentum; requires momentum and no dampening
  bool maximize = false;    ///< gradient ascent instead of descent
};

/// A group of parameters with its own options. Options that are not set have the optimizer's values.
struct SGDGroup {
  std::vector<nn::Parameter> params = {};             ///< the group's parameters
  std::optional<double> lr = std::nullopt;            ///< learning rate
  std::optional<double> momentum = std::nullopt;      ///< see SGDOptions
  std::optional<double> dampening = std::nullopt;     ///< see SGDOptions
  std::optional<double> weight_decay = std::nullopt;  ///< see SGDOptions
  std::optional<bool> nesterov = std::nullopt;        ///< see SGDOptions
  std::optional<bool> maximize = std::nullopt;        ///< see SGDOptions
};

/// The update of raw::sgd_step (tensor/ops/optim_ops_internal.h). As in PyTorch, the first momentum buffer is the gradient
/// itself, and lr is not part of the buffer (unlike Sutskever et al., 2013).
///
/// Throws InvalidArgument for a negative or infinite lr, momentum or weight_decay, for nesterov without momentum or with
/// dampening, if there are no parameters, and if a parameter is given twice.
class SGD : public Optimizer {
 public:
  explicit SGD(const Groups<SGDGroup>& params, const SGDOptions& options = {});

  using Optimizer::step;
  void step() override;
  /// Adds a group, for example of layers that are unfrozen. Throws as the constructor. Schedulers that exist do not change
  /// its learning rate.
  void add_param_group(const SGDGroup& group);

 private:
  void check_options(std::span<const double> options) const override;

  SGDOptions defaults_;
};

}  // namespace lockstep::optim
