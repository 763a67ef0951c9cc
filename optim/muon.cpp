#include "lockstep/optim/muon.h"

#include <algorithm>
#include <cmath>

#include "lockstep/autograd/ops/functions.h"
#include "lockstep/optim/composed_step_internal.h"

namespace lockstep::optim {
namespace {

struct MuonOption {
  enum Index { kLr, kWeightDecay, kMomentum, kA, kB, kC, kEps, kSteps, kScale, kNesterov };
};

// The options of a group, in the order of Layout::options.
std::vector<double> merge(const MuonGroup& group, const MuonOptions& defaults) {
  return {group.lr.value_or(defaults.lr),
          group.weight_decay.value_or(defaults.weight_decay),
          group.momentum.value_or(defaults.momentum),
          defaults.ns_a,
          defaults.ns_b,
          defaults.ns_c,
          defaults.eps,
          static_cast<double>(defaults.ns_steps),
          static_cast<double>(defaults.adjust_lr_fn),
          static_cast<double>(defaults.nesterov)};
}

// A nearly orthogonal matrix with the singular vectors of `update`, in bf16.
Tensor orthogonalized(const Tensor& update, std::span<const double> o) {
  using enum MuonOption::Index;
  const bool tall = update.size(0) > update.size(1);
  Tensor x = update.to(kBFloat16);
  if (tall) x = x.t();
  x = x / clamp_min(norm(x), o[kEps]);
  for (int step = 0; step < static_cast<int>(o[kSteps]); ++step) {
    const Tensor gram = matmul(x, x.t());
    x = addmm(x, addmm(gram, gram, gram, o[kB], o[kC]), x, o[kA]);
  }
  return tall ? x.t() : x;
}

double scale_of(double scale, const Tensor& p) {
  const double rows = static_cast<double>(p.size(0)), columns = static_cast<double>(p.size(1));
  switch (static_cast<MuonScale>(scale)) {
    case MuonScale::kMatchRmsAdamW:
      return 0.2 * std::sqrt(std::max(rows, columns));
    case MuonScale::kSpectralUnclamped:
      return std::sqrt(rows / columns);
    case MuonScale::kOriginal:
      break;
  }
  return std::sqrt(std::max(1.0, rows / columns));
}

}  // namespace

Muon::Muon(const Groups<MuonGroup>& params, const MuonOptions& options)
    : Optimizer({.type = "Muon",
                 .options = {"lr", "weight_decay", "momentum", "ns_coefficients", "ns_coefficients", "ns_coefficients",
                             "eps", "ns_steps", "adjust_lr_fn", "nesterov"},
                 .flags = 1,
                 .buffers = {"momentum_buffer"}}),
      defaults_(options) {
  Muon::check_options(merge({}, options));
  for (const MuonGroup& group : params) add_param_group(group);
  require_parameters();
}

void Muon::add_param_group(const MuonGroup& group) {
  require_whole_parameters("Muon", group.params);
  for (const nn::Parameter& parameter : group.params) {
    require_here(parameter);
    LOCKSTEP_CHECK(parameter.master().dim() == 2 && parameter.master().numel() > 0,
                   "Muon: a parameter is {}, expected matrices; give the others to another optimizer",
                   describe(parameter.master()));
  }
  add_group(group.params, merge(group, defaults_));
}

void Muon::check_options(std::span<const double> options) const {
  using enum MuonOption::Index;
  detail::require_option("Muon", "lr", options[kLr]);
  detail::require_option("Muon", "weight_decay", options[kWeightDecay]);
  detail::require_option("Muon", "momentum", options[kMomentum]);
  for (const auto coefficient : {kA, kB, kC})
    detail::require_option("Muon", "ns_coefficients", std::abs(options[coefficient]));
  detail::require_option("Muon", "eps", options[kEps]);
  detail::require_option("Muon", "ns_steps", options[kSteps], 100);
  detail::require_option("Muon", "adjust_lr_fn", options[kScale], 3);
}

void Muon::step() {
  using enum MuonOption::Index;
  composed_step("Muon", slots_, [this](Slot& slot, const Tensor& p, const Tensor& grad) {
    const std::span<const double> o = options(slot.group);
    fit(slot.buffers[0], p);
    const Tensor& m = slot.buffers[0].mul_(o[kMomentum]).add_(grad, 1 - o[kMomentum]);
    const Tensor update = o[kNesterov] != 0 ? grad * (1 - o[kMomentum]) + m * o[kMomentum] : m;
    p.mul_(1 - o[kLr] * o[kWeightDecay]);
    p.add_(orthogonalized(update, o), -o[kLr] * scale_of(o[kScale], p));
  });
}

}  // namespace lockstep::optim
