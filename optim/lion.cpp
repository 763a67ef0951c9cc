#include "lockstep/optim/lion.h"

#include "lockstep/optim/step_internal.h"

namespace lockstep::optim {
namespace {

// The options of a group, in the order of Layout::options.
std::vector<double> merge(const LionGroup& group, const LionOptions& defaults) {
  return {group.lr.value_or(defaults.lr), group.beta1.value_or(defaults.beta1), group.beta2.value_or(defaults.beta2),
          group.weight_decay.value_or(defaults.weight_decay)};
}

}  // namespace

Lion::Lion(const Groups<LionGroup>& params, const LionOptions& options)
    : Optimizer({.type = "Lion", .options = {"lr", "betas", "betas", "weight_decay"}, .buffers = {"exp_avg"}}),
      defaults_(options) {
  Lion::check_options(merge({}, options));
  for (const LionGroup& group : params) add_param_group(group);
  require_parameters();
}

void Lion::add_param_group(const LionGroup& group) { add_group(group.params, merge(group, defaults_)); }

void Lion::check_options(std::span<const double> options) const {
  detail::require_option("Lion", "lr", options[0]);
  detail::require_option("Lion", "beta1", options[1], 1);
  detail::require_option("Lion", "beta2", options[2], 1);
  detail::require_option("Lion", "weight_decay", options[3]);
}

void Lion::step() {
  step_in_lists(
      raw::lion_step,
      [](Slot& slot) {
        fit(slot.buffers[0], slot.parameter.master());
        return 0;
      },
      [](std::span<const double> options, std::int64_t) {
        return raw::LionStep{.lr = options[0], .beta1 = options[1], .beta2 = options[2], .weight_decay = options[3]};
      });
}

}  // namespace lockstep::optim
