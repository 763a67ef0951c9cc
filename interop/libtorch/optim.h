/// \file
/// Optimizers with LibTorch's options, which are chains of setters. See interop/libtorch.h.
#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include "lockstep/optim/optimizers.h"
#include "lockstep/optim/schedulers.h"

// A setter of the field of the same name in Lockstep's options.
#define LOCKSTEP_SETTER(field)                \
  auto& field(decltype(fields.field) value) { \
    fields.field = value;                     \
    return *this;                             \
  }

namespace lockstep::libtorch::optim {

using namespace lockstep::optim;

/// The options of an optimizer with setters, after the learning rate.
template <class Fields>
struct OptimizerOptions {
  OptimizerOptions(double lr = Fields().lr) : fields{.lr = lr} {}  // NOLINT: implicit, as in LibTorch
  Fields fields;                                                   ///< Lockstep's options
};
struct SGDOptions : OptimizerOptions<lockstep::optim::SGDOptions> {
  SGDOptions(double lr) : OptimizerOptions(lr) {}  // NOLINT: implicit; LibTorch's SGD has no default
  LOCKSTEP_SETTER(lr)
  LOCKSTEP_SETTER(momentum)
  LOCKSTEP_SETTER(dampening)
  LOCKSTEP_SETTER(weight_decay)
  LOCKSTEP_SETTER(nesterov)
};
/// Options of Adam and AdamW.
template <class Fields>
struct AdamFamilyOptions : OptimizerOptions<Fields> {
  using OptimizerOptions<Fields>::OptimizerOptions;
  using OptimizerOptions<Fields>::fields;
  /// Setters.
  LOCKSTEP_SETTER(lr)
  LOCKSTEP_SETTER(eps)
  LOCKSTEP_SETTER(weight_decay)
  LOCKSTEP_SETTER(amsgrad)
  /// Decay rates of the first and the second moment.
  auto& betas(const std::tuple<double, double>& values) {
    std::tie(fields.beta1, fields.beta2) = values;
    return *this;
  }
};
using AdamOptions = AdamFamilyOptions<lockstep::optim::AdamOptions>;
using AdamWOptions = AdamFamilyOptions<lockstep::optim::AdamWOptions>;
struct RMSpropOptions : OptimizerOptions<lockstep::optim::RMSpropOptions> {
  using OptimizerOptions::OptimizerOptions;
  LOCKSTEP_SETTER(lr)
  LOCKSTEP_SETTER(alpha)
  LOCKSTEP_SETTER(eps)
  LOCKSTEP_SETTER(weight_decay)
  LOCKSTEP_SETTER(momentum)
  LOCKSTEP_SETTER(centered)
};
struct AdagradOptions : OptimizerOptions<lockstep::optim::AdagradOptions> {
  using OptimizerOptions::OptimizerOptions;
  LOCKSTEP_SETTER(lr)
  LOCKSTEP_SETTER(lr_decay)
  LOCKSTEP_SETTER(weight_decay)
  LOCKSTEP_SETTER(initial_accumulator_value)
  LOCKSTEP_SETTER(eps)
};
struct LBFGSOptions : OptimizerOptions<lockstep::optim::LBFGSOptions> {
  using OptimizerOptions::OptimizerOptions;
  LOCKSTEP_SETTER(lr)
  LOCKSTEP_SETTER(max_iter)
  LOCKSTEP_SETTER(max_eval)
  LOCKSTEP_SETTER(tolerance_grad)
  LOCKSTEP_SETTER(tolerance_change)
  LOCKSTEP_SETTER(history_size)
};

/// An optimizer that also takes LibTorch's options, or a learning rate.
template <class Base, class Options>
class WithOptions : public Base {
 public:
  explicit WithOptions(const std::vector<lockstep::nn::Parameter>& parameters, const Options& options = Options())
      : Base(parameters, options.fields) {}
};
/// Optimizers by LibTorch's names: SGD(net->parameters(), SGDOptions(0.1).momentum(0.9)).
using SGD = WithOptions<lockstep::optim::SGD, SGDOptions>;
using Adam = WithOptions<lockstep::optim::Adam, AdamOptions>;
using AdamW = WithOptions<lockstep::optim::AdamW, AdamWOptions>;
using RMSprop = WithOptions<lockstep::optim::RMSprop, RMSpropOptions>;
using Adagrad = WithOptions<lockstep::optim::Adagrad, AdagradOptions>;
using LBFGS = WithOptions<lockstep::optim::LBFGS, LBFGSOptions>;

/// Multiplies the learning rate by gamma after every `step_size` steps.
class StepLR : public lockstep::optim::StepLR {
 public:
  StepLR(Optimizer& optimizer, std::int64_t step_size, double gamma = 0.1)
      : lockstep::optim::StepLR(optimizer, {.step_size = step_size, .gamma = gamma}) {}
};

}  // namespace lockstep::libtorch::optim

#undef LOCKSTEP_SETTER
