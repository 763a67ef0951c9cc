#include "lockstep/optim/adam.h"

#include <cmath>

#include "lockstep/optim/gradient_internal.h"
#include "lockstep/optim/step_list_internal.h"
#include "lockstep/tensor/capture_internal.h"
#include "lockstep/tensor/trace.h"

namespace lockstep::optim {
namespace {

void check(const char* name, const AdamOptions& o) {
  detail::require_option(name, "lr", o.lr);
  detail::require_option(name, "beta1", o.beta1, 1);
  detail::require_option(name, "beta2", o.beta2, 1);
  detail::require_option(name, "eps", o.eps);
  detail::require_option(name, "weight_decay", o.weight_decay);
}

AdamOptions merge(const AdamGroup& group, const AdamOptions& defaults) {
  return {.lr = group.lr.value_or(defaults.lr),
          .beta1 = group.beta1.value_or(defaults.beta1),
          .beta2 = group.beta2.value_or(defaults.beta2),
          .eps = group.eps.value_or(defaults.eps),
          .weight_decay = group.weight_decay.value_or(defaults.weight_decay)};
}

AdamOptions from(const AdamWOptions& o) {
  return {.lr = o.lr, .beta1 = o.beta1, .beta2 = o.beta2, .eps = o.eps, .weight_decay = o.weight_decay};
}

raw::AdamStep step_numbers(const AdamOptions& o, std::int64_t steps, bool decoupled) {
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

AdamBase::AdamBase(const char* name, bool decoupled, const Groups<AdamGroup>& groups, const AdamOptions& defaults)
    : name_(name), decoupled_(decoupled) {
  check(name_, defaults);
  for (const AdamGroup& group : groups) {
    options_.push_back(merge(group, defaults));
    check(name_, options_.back());
    add_group(name_, group.params);
  }
  require_parameters(name_);
}

void AdamBase::step() {
  const TraceSpan span(TraceKind::kOptimizer, "Adam");
  StepList list;
  std::vector<Slot*> captured;  // slots of `list` whose steps a CUDA graph must count
  std::size_t group = 0;        // the group of all parameters in `list`
  std::int64_t steps = 0;       // the step number of all parameters in `list`
  const auto take = [&] {
    if (list.all().empty()) return;
    raw::AdamStep numbers = step_numbers(options_[group], steps, decoupled_);
    capture::keep_on_device(numbers, list.device(), [this, group, slots = std::move(captured)] {
      for (Slot* const slot : slots) ++slot->steps;
      return step_numbers(options_[group], slots[0]->steps, decoupled_);
    });
    raw::adam_step(list.all(), numbers);
    list.clear();
    captured.clear();
  };
  for (Slot& slot : slots_) {
    const Tensor& parameter = slot.parameter.master();
    const Tensor* grad = gradient(parameter);
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
  for (Slot& slot : slots_) slot.steps += gradient(slot.parameter.master()) != nullptr;
}

std::vector<Optimizer::Option> AdamBase::options(std::size_t group) {
  AdamOptions& o = options_[group];
  return {{"lr", &o.lr, nullptr},
          {"beta1", &o.beta1, nullptr},
          {"beta2", &o.beta2, nullptr},
          {"eps", &o.eps, nullptr},
          {"weight_decay", &o.weight_decay, nullptr}};
}

void AdamBase::check_options(std::span<const double> values) const {
  check(name_, {.lr = values[0], .beta1 = values[1], .beta2 = values[2], .eps = values[3], .weight_decay = values[4]});
}

std::span<const char* const> AdamBase::buffer_names() const {
  static constexpr const char* kNames[] = {"exp_avg", "exp_avg_sq"};
  return kNames;
}

Adam::Adam(const Groups<AdamGroup>& params, const AdamOptions& options) : AdamBase("Adam", false, params, options) {}

AdamW::AdamW(const Groups<AdamWGroup>& params, const AdamWOptions& options)
    : AdamBase("AdamW", true, params, from(options)) {}

}  // namespace lockstep::optim
