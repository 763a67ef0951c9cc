#include "lockstep/optim/nadam.h"

#include <cmath>

#include "lockstep/autograd/ops/functions.h"
#include "lockstep/optim/composed_step_internal.h"

namespace lockstep::optim {
namespace {

// Options that both optimizers have, in the order of Layout::options.
struct NAdamOption {
  enum Index { kLr, kBeta1, kBeta2, kEps, kWeightDecay };
};

template <class Group, class Options>
std::vector<double> common(const Group& group, const Options& defaults) {
  return {group.lr.value_or(defaults.lr), group.beta1.value_or(defaults.beta1), group.beta2.value_or(defaults.beta2),
          group.eps.value_or(defaults.eps), group.weight_decay.value_or(defaults.weight_decay)};
}

std::vector<double> merge(const NAdamGroup& group, const NAdamOptions& defaults) {
  std::vector<double> options = common(group, defaults);
  options.push_back(group.momentum_decay.value_or(defaults.momentum_decay));
  options.push_back(group.decoupled_weight_decay.value_or(defaults.decoupled_weight_decay));
  return options;
}

std::vector<double> merge(const RAdamGroup& group, const RAdamOptions& defaults) {
  std::vector<double> options = common(group, defaults);
  options.push_back(group.decoupled_weight_decay.value_or(defaults.decoupled_weight_decay));
  return options;
}

void check_common(const char* type, std::span<const double> options) {
  using enum NAdamOption::Index;
  detail::require_option(type, "lr", options[kLr]);
  detail::require_option(type, "beta1", options[kBeta1], 1);
  detail::require_option(type, "beta2", options[kBeta2], 1);
  detail::require_option(type, "eps", options[kEps]);
  detail::require_option(type, "weight_decay", options[kWeightDecay]);
}

// Decays the parameter, or returns the gradient with the decay added; the last option is decoupled_weight_decay.
Tensor decayed(const Tensor& p, const Tensor& grad, std::span<const double> options) {
  using enum NAdamOption::Index;
  if (options[kWeightDecay] == 0) return grad;
  if (options.back() == 0) return add(grad, p, options[kWeightDecay]);
  p.mul_(1 - options[kLr] * options[kWeightDecay]);
  return grad;
}

// Updates the means of gradients and of squared gradients.
void update_means(const Tensor& m, const Tensor& v, const Tensor& grad, std::span<const double> options) {
  using enum NAdamOption::Index;
  m.mul_(options[kBeta1]).add_(grad, 1 - options[kBeta1]);
  v.mul_(options[kBeta2]).add_(grad * grad, 1 - options[kBeta2]);
}

// The momentum of a step, and the product of those of all steps so far. The product of many is below the resolution of
// 1 - product, so the rest need not be multiplied.
double momentum(std::span<const double> options, std::int64_t step) {
  using enum NAdamOption::Index;
  return options[kBeta1] * (1 - 0.5 * std::pow(0.96, static_cast<double>(step) * options[5]));
}
double product_of_momenta(std::span<const double> options, std::int64_t steps) {
  double product = 1;
  for (std::int64_t step = 1; step <= steps && product > 1e-20; ++step) product *= momentum(options, step);
  return product;
}

}  // namespace

NAdam::NAdam(const Groups<NAdamGroup>& params, const NAdamOptions& options)
    : Optimizer({.type = "NAdam",
                 .options = {"lr", "betas", "betas", "eps", "weight_decay", "momentum_decay", "decoupled_weight_decay"},
                 .flags = 1,
                 .buffers = {"exp_avg", "exp_avg_sq"},
                 .saves_steps = true}),
      defaults_(options) {
  NAdam::check_options(merge({}, options));
  for (const NAdamGroup& group : params) add_param_group(group);
  require_parameters();
}

void NAdam::add_param_group(const NAdamGroup& group) { add_group(group.params, merge(group, defaults_)); }

void NAdam::check_options(std::span<const double> options) const {
  check_common("NAdam", options);
  detail::require_option("NAdam", "momentum_decay", options[5]);
}

void NAdam::step() {
  using enum NAdamOption::Index;
  composed_step("NAdam", slots_, [this](Slot& slot, const Tensor& p, const Tensor& own) {
    const std::span<const double> o = options(slot.group);
    for (int b = 0; b < 2; ++b) fit(slot.buffers[b], p);
    const Tensor &m = slot.buffers[0], &v = slot.buffers[1], grad = decayed(p, own, o);
    update_means(m, v, grad, o);
    const double mu = momentum(o, slot.steps), next = momentum(o, slot.steps + 1),
                 product = product_of_momenta(o, slot.steps);
    const Tensor divisor = sqrt(v / (1 - std::pow(o[kBeta2], slot.steps))).add_(o[kEps]);
    p.add_(grad / divisor, -o[kLr] * (1 - mu) / (1 - product));
    p.add_(m / divisor, -o[kLr] * next / (1 - product * next));
  });
}

RAdam::RAdam(const Groups<RAdamGroup>& params, const RAdamOptions& options)
    : Optimizer({.type = "RAdam",
                 .options = {"lr", "betas", "betas", "eps", "weight_decay", "decoupled_weight_decay"},
                 .flags = 1,
                 .buffers = {"exp_avg", "exp_avg_sq"},
                 .saves_steps = true}),
      defaults_(options) {
  RAdam::check_options(merge({}, options));
  for (const RAdamGroup& group : params) add_param_group(group);
  require_parameters();
}

void RAdam::add_param_group(const RAdamGroup& group) { add_group(group.params, merge(group, defaults_)); }

void RAdam::check_options(std::span<const double> options) const { check_common("RAdam", options); }

void RAdam::step() {
  using enum NAdamOption::Index;
  composed_step("RAdam", slots_, [this](Slot& slot, const Tensor& p, const Tensor& own) {
    const std::span<const double> o = options(slot.group);
    for (int b = 0; b < 2; ++b) fit(slot.buffers[b], p);
    const Tensor &m = slot.buffers[0], &v = slot.buffers[1], grad = decayed(p, own, o);
    update_means(m, v, grad, o);
    const double t = static_cast<double>(slot.steps), power = std::pow(o[kBeta2], t);
    const double rate = o[kLr] / (1 - std::pow(o[kBeta1], t)), longest = 2 / (1 - o[kBeta2]) - 1,
                 length = longest - 2 * t * power / (1 - power);  // of the moving average
    if (length > 5) {
      const double rectification =
          std::sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length));
      p.add_(m / sqrt(v).add_(o[kEps]), -rate * std::sqrt(1 - power) * rectification);
    } else {
      p.add_(m, -rate);
    }
  });
}

}  // namespace lockstep::optim
