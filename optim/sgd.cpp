#include "lockstep/optim/sgd.h"

#include "lockstep/base/check_internal.h"
#include "lockstep/optim/step_internal.h"

namespace lockstep::optim {
namespace {

// The options of a group, in the order of Layout::options.
std::vector<double> merge(const SGDGroup& group, const SGDOptions& defaults) {
  return {group.lr.value_or(defaults.lr),
          group.momentum.value_or(defaults.momentum),
          group.dampening.value_or(defaults.dampening),
          group.weight_decay.value_or(defaults.weight_decay),
          static_cast<double>(group.nesterov.value_or(defaults.nesterov)),
          static_cast<double>(group.maximize.value_or(defaults.maximize))};
}

raw::SgdStep step_numbers(std::span<const double> options, bool first = false) {
  return {.lr = options[0],
          .momentum = options[1],
          .dampening = options[2],
          .weight_decay = options[3],
          .nesterov = options[4] != 0,
          .maximize = options[5] != 0,
          .first = first};
}

}  // namespace

SGD::SGD(const Groups<SGDGroup>& params, const SGDOptions& options)
    : Optimizer({.type = "SGD",
                 .options = {"lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize"},
                 .flags = 2,
                 .buffers = {"momentum_buffer"}}),
      defaults_(options) {
  SGD::check_options(merge({}, options));
  for (const SGDGroup& group : params) add_param_group(group);
  require_parameters();
}

void SGD::add_param_group(const SGDGroup& group) { add_group(group.params, merge(group, defaults_)); }

void SGD::check_options(std::span<const double> options) const {
  const raw::SgdStep o = step_numbers(options);
  detail::require_option("SGD", "lr", o.lr);
  detail::require_option("SGD", "momentum", o.momentum);
  detail::require_option("SGD", "weight_decay", o.weight_decay);
  LOCKSTEP_CHECK(o.dampening - o.dampening == 0, "SGD: dampening is {}, expected a finite number", o.dampening);
  LOCKSTEP_CHECK(!o.nesterov || (o.momentum > 0 && o.dampening == 0),
                 "SGD: nesterov needs a momentum above 0 and no dampening; momentum is {}, dampening is {}", o.momentum,
                 o.dampening);
}

void SGD::step() {
  step_in_lists(
      raw::sgd_step,
      [this](Slot& slot) {
        const bool is_new = !slot.buffers[0].defined();
        if (step_numbers(options(slot.group)).momentum != 0) fit(slot.buffers[0], slot.parameter.master());
        return is_new;
      },
      [](std::span<const double> options, std::int64_t is_new) { return step_numbers(options, is_new != 0); });
}

}  // namespace lockstep::optim
