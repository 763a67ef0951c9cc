#include "lockstep/optim/adam.h"

#include <cmath>

#include "lockstep/optim/step_internal.h"
#include "lockstep/tensor/capture_internal.h"
#include "lockstep/tensor/trace.h"

namespace lockstep::optim {
namespace {

// The options of a group, in the order of Layout::options.
std::vector<double> merge(const AdamGroup& group, const AdamOptions& defaults) {
  return {group.lr.value_or(defaults.lr), group.beta1.value_or(defaults.beta1), group.beta2.value_or(defaults.beta2),
          group.eps.value_or(defaults.eps), group.weight_decay.value_or(defaults.weight_decay)};
}

AdamOptions from(std::span<const double> options) {
  return {.lr = options[0], .beta1 = options[1], .beta2 = options[2], .eps = options[3], .weight_decay = options[4]};
}

AdamOptions from(const AdamWOptions& o) {
  return {.lr = o.lr, .beta1 = o.beta1, .beta2 = o.beta2, .eps = o.eps, .weight_decay = o.weight_decay};
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
          .decoupled = decoupled};
}

}  // namespace

AdamBase::AdamBase(const char* type, bool decoupled, const Groups<AdamGroup>& groups, const AdamOptions& defaults)
    : Optimizer({.type = type,
                 .options = {"lr", "betas", "betas", "eps", "weight_decay"},
                 .buffers = {"exp_avg", "exp_avg_sq"},
                 .saves_steps = true}),
      decoupled_(decoupled) {
  AdamBase::check_options(merge({}, defaults));
  for (const AdamGroup& group : groups) add_group(group.params, merge(group, defaults));
  require_parameters();
}

void AdamBase::check_options(std::span<const double> options) const {
  const AdamOptions o = from(options);
  detail::require_option(type(), "lr", o.lr);
  detail::require_option(type(), "beta1", o.beta1, 1);
  detail::require_option(type(), "beta2", o.beta2, 1);
  detail::require_option(type(), "eps", o.eps);
  detail::require_option(type(), "weight_decay", o.weight_decay);
}

void AdamBase::step() {
  const TraceSpan span(TraceKind::kOptimizer, "Adam");
  StepList list;
  std::vector<Slot*> captured;  // slots of `list` whose steps a CUDA graph must count
  std::size_t group = 0;        // the group of all parameters in `list`
  std::int64_t steps = 0;       // the step number of all parameters in `list`
  const auto take = [&] {
    if (list.all().empty()) return;
    raw::AdamStep numbers = step_numbers(options(group), steps, decoupled_);
    capture::keep_on_device(numbers, list.device(), [this, group, slots = std::move(captured)] {
      for (Slot* const slot : slots) ++slot->steps;
      return step_numbers(options(group), slots[0]->steps, decoupled_);
    });
    raw::adam_step(list.all(), numbers);
    list.clear();
    captured.clear();
  };
  for (Slot& slot : slots_) {
    const Tensor& parameter = slot.parameter.master();
    const Tensor* grad = gradient(slot.parameter);
    if (!grad) continue;
    fit(slot.buffers[0], parameter);
    fit(slot.buffers[1], parameter);
    if (slot.group != group || slot.steps + 1 != steps || !list.takes(parameter)) take();
    group = slot.group;
    steps = slot.steps + 1;
    list.add({.parameter = &parameter, .grad = grad, .state = {&slot.buffers[0], &slot.buffers[1]}});
    if (capture::is_active(parameter.device())) captured.push_back(&slot);
  }
  take();
  for (Slot& slot : slots_) slot.steps += gradient(slot.parameter) != nullptr;
}

Adam::Adam(const Groups<AdamGroup>& params, const AdamOptions& options) : AdamBase("Adam", false, params, options) {}

AdamW::AdamW(const Groups<AdamWGroup>& params, const AdamWOptions& options)
    : AdamBase("AdamW", true, params, from(options)) {}

}  // namespace lockstep::optim
