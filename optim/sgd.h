// Stochastic gradient descent with momentum, as torch.optim.SGD.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

struct SGDOptions {
  double lr = 1e-3;         // learning rate
  double momentum = 0;      // share of the last step's buffer in this one's; 0: none
  double dampening = 0;     // the gradient enters the buffer times 1 - dampening
  double weight_decay = 0;  // times the parameter, added to the gradient
  bool nesterov = false;    // Nesterov's form; needs momentum, without dampening
  bool maximize = false;    // up the gradient instead of down
};

// Parameters with options of their own; what is not given is taken from the optimizer's SGDOptions.
struct SGDGroup {
  std::vector<nn::Parameter> params = {};             // the group's parameters
  std::optional<double> lr = std::nullopt;            // learning rate
  std::optional<double> momentum = std::nullopt;      // see SGDOptions
  std::optional<double> dampening = std::nullopt;     // see SGDOptions
  std::optional<double> weight_decay = std::nullopt;  // see SGDOptions
  std::optional<bool> nesterov = std::nullopt;        // see SGDOptions
  std::optional<bool> maximize = std::nullopt;        // see SGDOptions
};

// The update of raw::sgd_step (tensor/optim_ops_internal.h): PyTorch's, in which the first momentum buffer is the gradient itself
// and lr stands outside of it (unlike Sutskever et al., 2013).
//
// Throws InvalidArgument for a negative or infinite lr, momentum or weight_decay, for nesterov without momentum or with
// dampening, without parameters, and for a parameter given twice.
class SGD : public Optimizer {
 public:
  explicit SGD(const Groups<SGDGroup>& params, const SGDOptions& options = {});

  void step() override;

 private:
  std::vector<Option> options(std::size_t group) override;
  void check_options(std::span<const double> values) const override;
  std::span<const char* const> buffer_names() const override;
  bool saves_steps() const override { return false; }
  double& group_lr(std::size_t group) override { return options_[group].lr; }

  std::vector<SGDOptions> options_;  // one for each group
};

}  // namespace lockstep::optim
