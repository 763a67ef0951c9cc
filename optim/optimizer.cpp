#include "lockstep/optim/optimizer.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/base/byte_reader_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/optim/step_internal.h"
#include "lockstep/tensor/memory/capture_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::optim {

void detail::require_option(const char* optimizer, const char* option, double value, double below) {
  LOCKSTEP_CHECK(is_option(value, below), "{}: {} is {}, expected {}", optimizer, option, value,
                 below == 1 ? "a number in [0, 1)" : "a finite number of at least 0");
}

void throw_elsewhere(const nn::Parameter& parameter) {
  LOCKSTEP_CHECK(parameter.sharding() != nn::Sharding::kCut,
                 "optimizer: {} is a whole parameter that tensor parallelism has replaced by slices, of which the "
                 "optimizer has none; construct the optimizer after parallelize, or with run.parameters() of the "
                 "Parallel",
                 parameter.slice()->name);
  LOCKSTEP_CHECK(parameter.sharding() == nn::Sharding::kSharded,
                 "optimizer: a parameter is undefined, as those in pipeline stages of other ranks are; construct the "
                 "optimizer with run.parameters() of the Pipeline, after it");
  throw InvalidArgument(
      "optimizer: a parameter is distributed over the ranks; construct the optimizer with "
      "run.parameters() of the ShardedDataParallel, after it");
}

void throw_dtype(const char* type, std::size_t index, const nn::Parameter& parameter) {
  const std::string name = parameter.slice() ? fmt::format(" ({})", in_quotes(parameter.slice()->name)) : "";
  throw InvalidArgument(fmt::format(
      "{}: parameters()[{}]{} is {}; optimizers update f32 and f64 parameters\nKeep the model in f32, and compute in "
      "f16 or bf16 with AutocastGuard (f16 with GradScaler), or convert it first with model.to(kFloat32)",
      type, index, name, describe(parameter.master())));
}

void Optimizer::add_group(const std::vector<nn::Parameter>& parameters, std::vector<double> options) {
  LOCKSTEP_CHECK(options.size() == layout_.options.size(), "{}: a group has {} options, expected {}", type(),
                 options.size(), layout_.options.size());
  check_options(options);
  std::unordered_set<const nn::TensorSlot*> seen;
  for (const Slot& slot : slots_) seen.insert(slot.parameter.id());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    require_here(parameters[i]);
    LOCKSTEP_CHECK(seen.insert(parameters[i].id()).second,
                   "{}: parameter {} of group {}, {}, was given before; pass each parameter once", type(), i,
                   group_count(), describe(parameters[i].master()));
  }
  for (const nn::Parameter& parameter : parameters) slots_.push_back({.parameter = parameter, .group = group_count()});
  groups_.push_back({.options = std::move(options), .size = parameters.size()});
}

void Optimizer::require_parameters() const { LOCKSTEP_CHECK(!slots_.empty(), "{}: no parameters were given", type()); }

void Optimizer::fit(Tensor& buffer, const Tensor& parameter, const Shape& shape) {
  const TensorImpl& p = parameter.impl();
  if (!buffer.defined()) {
    LOCKSTEP_CHECK(!capture::is_active(parameter.device()),
                   "optimizer: the state of {} would be created during CUDA graph capture, and again in every replay; "
                   "call step() once before the capture",
                   describe(parameter));
    buffer = raw::zeros(shape, parameter.options());
  } else if (buffer.impl().dtype != p.dtype || buffer.device() != p.storage->device()) {
    buffer = raw::to(raw::to(buffer, p.dtype), p.storage->device());
  }
}

Tensor Optimizer::step(FunctionRef<Tensor()> closure) {
  Tensor loss;
  {
    const EnableGradGuard enable;
    loss = closure();
  }
  step();
  return loss;
}

std::vector<nn::Parameter> Optimizer::parameters() const {
  std::vector<nn::Parameter> all;
  for (const Slot& slot : slots_) all.push_back(slot.parameter);
  return all;
}

void Optimizer::zero_grad() {
  for (const Slot& slot : slots_) {
    require_here(slot.parameter);
    slot.parameter.master().set_grad({});
  }
}

void Optimizer::check_group(std::size_t group) const {
  LOCKSTEP_CHECK(group < group_count(), "optimizer: group {} is outside [0, {})", group, group_count());
}

double Optimizer::lr(std::size_t group) const {
  check_group(group);
  return groups_[group].options[0];
}

double Optimizer::initial_lr(std::size_t group) {
  double& initial = groups_[group].initial_lr;
  if (initial < 0) initial = lr(group);
  return initial;
}

// The index of the option "momentum", or of the first of "betas"; the number of options if there is neither.
std::size_t Optimizer::momentum_option() const {
  const auto found = std::ranges::find_if(layout_.options,
                                          [](std::string_view name) { return name == "momentum" || name == "betas"; });
  return static_cast<std::size_t>(found - layout_.options.begin());
}

void Optimizer::set_momentum(double momentum) {
  for (Group& group : groups_) group.options[momentum_option()] = momentum;
}

void Optimizer::set_lr(std::size_t group, double lr) {
  check_group(group);
  detail::require_option("set_lr", "lr", lr);
  groups_[group].options[0] = lr;
  if (groups_[group].initial_lr >= 0) groups_[group].initial_lr = lr;
}

void Optimizer::set_lr(double lr) {
  for (std::size_t group = 0; group < group_count(); ++group) set_lr(group, lr);
}

}  // namespace lockstep::optim
