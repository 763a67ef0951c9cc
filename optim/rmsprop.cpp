#include "lockstep/optim/rmsprop.h"

#include "lockstep/optim/step_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::optim {
namespace {

// The options of a group, in the order of Layout::options.
std::vector<double> merge(const RMSpropGroup& group, const RMSpropOptions& defaults) {
  return {group.lr.value_or(defaults.lr),
          group.alpha.value_or(defaults.alpha),
          group.eps.value_or(defaults.eps),
          group.weight_decay.value_or(defaults.weight_decay),
          group.momentum.value_or(defaults.momentum),
          static_cast<double>(group.centered.value_or(defaults.centered))};
}

std::vector<double> merge(const AdagradGroup& group, const AdagradOptions& defaults) {
  return {group.lr.value_or(defaults.lr), group.lr_decay.value_or(defaults.lr_decay),
          group.weight_decay.value_or(defaults.weight_decay),
          group.initial_accumulator_value.value_or(defaults.initial_accumulator_value),
          group.eps.value_or(defaults.eps)};
}

raw::RmsPropStep rmsprop_numbers(std::span<const double> options) {
  return {.lr = options[0],
          .alpha = options[1],
          .rest = 1 - options[1],
          .eps = options[2],
          .weight_decay = options[3],
          .momentum = options[4],
          .centered = options[5] != 0};
}

raw::RmsPropStep adagrad_numbers(std::span<const double> options, std::int64_t steps) {
  return {.lr = options[0] / (1 + static_cast<double>(steps) * options[1]),
          .alpha = 1,
          .rest = 1,
          .eps = options[4],
          .weight_decay = options[2]};
}

}  // namespace

RMSprop::RMSprop(const Groups<RMSpropGroup>& params, const RMSpropOptions& options)
    : Optimizer({.type = "RMSprop",
                 .options = {"lr", "alpha", "eps", "weight_decay", "momentum", "centered"},
                 .flags = 1,
                 .buffers = {"square_avg", "momentum_buffer", "grad_avg"},
                 .saves_steps = true,
                 .optional_buffers = 2}),
      defaults_(options) {
  RMSprop::check_options(merge({}, options));
  for (const RMSpropGroup& group : params) add_param_group(group);
  require_parameters();
}

void RMSprop::add_param_group(const RMSpropGroup& group) { add_group(group.params, merge(group, defaults_)); }

void RMSprop::check_options(std::span<const double> options) const {
  detail::require_option("RMSprop", "lr", options[0]);
  detail::require_option("RMSprop", "alpha", options[1], 1);
  detail::require_option("RMSprop", "eps", options[2]);
  detail::require_option("RMSprop", "weight_decay", options[3]);
  detail::require_option("RMSprop", "momentum", options[4]);
}

void RMSprop::step() {
  step_in_lists(
      raw::rmsprop_step,
      [this](Slot& slot) {
        const raw::RmsPropStep numbers = rmsprop_numbers(options(slot.group));
        const bool used[] = {true, numbers.momentum != 0, numbers.centered};
        for (std::size_t b = 0; b < 3; ++b) {
          if (used[b]) fit(slot.buffers[b], slot.parameter.master());
        }
        return 0;
      },
      [](std::span<const double> options, std::int64_t) { return rmsprop_numbers(options); });
}

Adagrad::Adagrad(const Groups<AdagradGroup>& params, const AdagradOptions& options)
    : Optimizer({.type = "Adagrad",
                 .options = {"lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"},
                 .buffers = {"sum"},
                 .saves_steps = true}),
      defaults_(options) {
  Adagrad::check_options(merge({}, options));
  for (const AdagradGroup& group : params) add_param_group(group);
  require_parameters();
}

void Adagrad::add_param_group(const AdagradGroup& group) { add_group(group.params, merge(group, defaults_)); }

void Adagrad::check_options(std::span<const double> options) const {
  detail::require_option("Adagrad", "lr", options[0]);
  detail::require_option("Adagrad", "lr_decay", options[1]);
  detail::require_option("Adagrad", "weight_decay", options[2]);
  detail::require_option("Adagrad", "initial_accumulator_value", options[3]);
  detail::require_option("Adagrad", "eps", options[4]);
}

void Adagrad::step() {
  step_in_lists(
      raw::rmsprop_step,
      [this](Slot& slot) {
        Tensor& sum = slot.buffers[0];
        const bool is_new = !sum.defined();
        fit(sum, slot.parameter.master());
        if (is_new) raw::fill(sum, options(slot.group)[3]);
        return slot.steps;
      },
      adagrad_numbers);
}

}  // namespace lockstep::optim
