#include "lockstep/optim/sgd.h"

#include "lockstep/optim/step_internal.h"
#include "lockstep/tensor/capture_internal.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/trace.h"

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
                 .buffers = {"momentum_buffer"}}) {
  SGD::check_options(merge({}, options));
  for (const SGDGroup& group : params) add_group(group.params, merge(group, options));
  require_parameters();
}

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
  const TraceSpan span(TraceKind::kOptimizer, "SGD");
  StepList list;
  std::size_t group = 0;  // the group of all parameters in `list`
  bool first = false;
  const auto take = [&] {
    if (list.all().empty()) return;
    raw::SgdStep numbers = step_numbers(options(group), first);
    capture::keep_on_device(numbers, list.device(), [this, group] { return step_numbers(options(group)); });
    raw::sgd_step(list.all(), numbers);
    list.clear();
  };
  for (Slot& slot : slots_) {
    const Tensor& parameter = slot.parameter.master();
    const Tensor* grad = gradient(slot.parameter);
    if (!grad) continue;
    Tensor& buffer = slot.buffers[0];
    const bool is_new = !buffer.defined();
    if (step_numbers(options(slot.group)).momentum != 0) fit(buffer, parameter);
    if (slot.group != group || is_new != first || !list.takes(parameter)) take();
    group = slot.group;
    first = is_new;
    list.add({.parameter = &parameter, .grad = grad, .state = {&buffer}});
  }
  take();
}

}  // namespace lockstep::optim
