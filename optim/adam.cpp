#include "lockstep/optim/adam.h"

#include <cmath>

#include "lockstep/optim/step_internal.h"

namespace lockstep::optim {
namespace {

// The options of a group, in the order of Layout::options.
std::vector<double> merge(const AdamGroup& group, const AdamOptions& defaults) {
  return {group.lr.value_or(defaults.lr),
          group.beta1.value_or(defaults.beta1),
          group.beta2.value_or(defaults.beta2),
          group.eps.value_or(defaults.eps),
          group.weight_decay.value_or(defaults.weight_decay),
          static_cast<double>(group.amsgrad.value_or(defaults.amsgrad))};
}

AdamOptions from(std::span<const double> options) {
  return {.lr = options[0],
          .beta1 = options[1],
          .beta2 = options[2],
          .eps = options[3],
          .weight_decay = options[4],
          .amsgrad = options[5] != 0};
}

AdamOptions from(const AdamWOptions& o) {
  return {.lr = o.lr,
          .beta1 = o.beta1,
          .beta2 = o.beta2,
          .eps = o.eps,
          .weight_decay = o.weight_decay,
          .amsgrad = o.amsgrad};
}

raw::AdamStep step_numbers(std::span<const double> options, std::int64_t steps, bool decoupled) {
  const AdamOptions o = from(options);
  const auto t = static_cast<double>(steps);
  return {.beta1 = o.beta1,
          .beta2 = o.beta2,
          .eps = o.eps,
          .weight_decay = o.weight_decay,
          .rate = o.lr / (1 - std::pow(o.beta1, t)),
          .root = std::sqrt(1 - std::pow(o.beta2, t)),
          .shrink = 1 - o.lr * o.weight_decay,
          .decoupled = decoupled,
          .amsgrad = o.amsgrad};
}

}  // namespace

AdamBase::AdamBase(const char* type, bool decoupled, const Groups<AdamGroup>& groups, const AdamOptions& defaults)
    : Optimizer({.type = type,
                 .options = {"lr", "betas", "betas", "eps", "weight_decay", "amsgrad"},
                 .flags = 1,
                 .buffers = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
                 .saves_steps = true,
                 .optional_buffers = 1}),
      defaults_(defaults), decoupled_(decoupled) {
  AdamBase::check_options(merge({}, defaults));
  for (const AdamGroup& group : groups) add_param_group(group);
  require_parameters();
}

void AdamBase::add_param_group(const AdamGroup& group) { add_group(group.params, merge(group, defaults_)); }

void AdamBase::check_options(std::span<const double> options) const {
  const AdamOptions o = from(options);
  detail::require_option(type(), "lr", o.lr);
  detail::require_option(type(), "beta1", o.beta1, 1);
  detail::require_option(type(), "beta2", o.beta2, 1);
  detail::require_option(type(), "eps", o.eps);
  detail::require_option(type(), "weight_decay", o.weight_decay);
}

void AdamBase::step() {
  step_in_lists(
      raw::adam_step,
      [this](Slot& slot) {
        const std::size_t buffers = from(options(slot.group)).amsgrad ? 3 : 2;
        for (std::size_t b = 0; b < buffers; ++b) fit(slot.buffers[b], slot.parameter.master());
        return slot.steps + 1;
      },
      [decoupled = decoupled_](std::span<const double> options, std::int64_t steps) {
        return step_numbers(options, steps, decoupled);
      });
}

Adam::Adam(const Groups<AdamGroup>& params, const AdamOptions& options) : AdamBase("Adam", false, params, options) {}

AdamW::AdamW(const Groups<AdamWGroup>& params, const AdamWOptions& options)
    : AdamBase("AdamW", true, params, from(options)) {}

}  // namespace lockstep::optim
