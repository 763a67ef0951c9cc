#include "lockstep/optim/sgd.h"

#include "lockstep/optim/gradient_internal.h"
#include "lockstep/optim/step_list_internal.h"
#include "lockstep/tensor/capture_internal.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/trace.h"

namespace lockstep::optim {
namespace {

void check(const SGDOptions& o) {
  detail::require_option("SGD", "lr", o.lr);
  detail::require_option("SGD", "momentum", o.momentum);
  detail::require_option("SGD", "weight_decay", o.weight_decay);
  LOCKSTEP_CHECK(o.dampening - o.dampening == 0, "SGD: dampening is {}, expected a finite number", o.dampening);
  LOCKSTEP_CHECK(!o.nesterov || (o.momentum > 0 && o.dampening == 0),
                 "SGD: nesterov needs a momentum above 0 and no dampening; momentum is {}, dampening is {}", o.momentum,
                 o.dampening);
}

SGDOptions merge(const SGDGroup& group, const SGDOptions& defaults) {
  return {.lr = group.lr.value_or(defaults.lr),
          .momentum = group.momentum.value_or(defaults.momentum),
          .dampening = group.dampening.value_or(defaults.dampening),
          .weight_decay = group.weight_decay.value_or(defaults.weight_decay),
          .nesterov = group.nesterov.value_or(defaults.nesterov),
          .maximize = group.maximize.value_or(defaults.maximize)};
}

raw::SgdStep step_numbers(const SGDOptions& o, bool first) {
  return {.lr = o.lr,
          .momentum = o.momentum,
          .dampening = o.dampening,
          .weight_decay = o.weight_decay,
          .nesterov = o.nesterov,
          .maximize = o.maximize,
          .first = first};
}

}  // namespace

SGD::SGD(const Groups<SGDGroup>& params, const SGDOptions& options) {
  check(options);
  for (const SGDGroup& group : params) {
    options_.push_back(merge(group, options));
    check(options_.back());
    add_group("SGD", group.params);
  }
  require_parameters("SGD");
}

void SGD::step() {
  const TraceSpan span(TraceKind::kOptimizer, "SGD");
  StepList list;
  std::size_t group = 0;  // the group of all parameters in `list`
  bool first = false;
  const auto take = [&] {
    if (list.all().empty()) return;
    raw::SgdStep numbers = step_numbers(options_[group], first);
    capture::keep_on_device(numbers, list.device(), [this, group] { return step_numbers(options_[group], false); });
    raw::sgd_step(list.all(), numbers);
    list.clear();
  };
  for (Slot& slot : slots_) {
    const Tensor& parameter = slot.parameter.master();
    const Tensor* grad = gradient(parameter);
    if (!grad) continue;
    Tensor& buffer = slot.buffers[0];
    const bool is_new = !buffer.defined();
    if (options_[slot.group].momentum != 0) fit(buffer, parameter);
    if (slot.group != group || is_new != first || !list.takes(parameter)) take();
    group = slot.group;
    first = is_new;
    list.add({.parameter = &parameter, .grad = grad, .state = {&buffer}});
  }
  take();
}

std::vector<Optimizer::Option> SGD::options(std::size_t group) {
  SGDOptions& o = options_[group];
  return {{"lr", &o.lr, nullptr},
          {"momentum", &o.momentum, nullptr},
          {"dampening", &o.dampening, nullptr},
          {"weight_decay", &o.weight_decay, nullptr},
          {"nesterov", nullptr, &o.nesterov},
          {"maximize", nullptr, &o.maximize}};
}

void SGD::check_options(std::span<const double> values) const {
  check({.lr = values[0],
         .momentum = values[1],
         .dampening = values[2],
         .weight_decay = values[3],
         .nesterov = values[4] != 0,
         .maximize = values[5] != 0});
}

std::span<const char* const> SGD::buffer_names() const {
  static constexpr const char* kNames[] = {"momentum_buffer"};
  return kNames;
}

}  // namespace lockstep::optim
