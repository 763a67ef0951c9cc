#include "lockstep/optim/lbfgs.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "lockstep/autograd/ops/functions.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/nn/module_internal.h"
#include "lockstep/optim/state_internal.h"
#include "lockstep/optim/step_internal.h"

namespace lockstep::optim {
namespace {

enum Option { kLr, kMaxIter, kMaxEval, kToleranceGrad, kToleranceChange, kHistorySize, kLineSearch };

double inner_product(const Tensor& a, const Tensor& b) { return matmul(a, b).item<double>(); }
double largest(const Tensor& x) { return x.numel() == 0 ? 0 : max(abs(x)).item<double>(); }

// The minimum, within [low, high], of the cubic with the values and slopes of two points.
template <class Point>
double cubic_minimum(const Point& a, const Point& b, double low, double high) {
  const double d1 = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.t - b.t);
  const double square = d1 * d1 - a.slope * b.slope;
  if (!(square >= 0)) return (low + high) / 2;
  const double d2 = std::sqrt(square);
  const Point &left = a.t <= b.t ? a : b, &right = a.t <= b.t ? b : a;
  const double minimum = right.t - (right.t - left.t) * ((right.slope + d2 - d1) / (right.slope - left.slope + 2 * d2));
  return std::min(std::max(minimum, low), high);
}

// A point well inside the bracket. A minimum of the cubic near an end counts as insufficient progress; the second such
// minimum, and one outside, is replaced by a point a tenth of the bracket away from the end.
template <class Point>
double next_trial(const Point& a, const Point& b, bool& insufficient) {
  const double low = std::min(a.t, b.t), high = std::max(a.t, b.t), margin = 0.1 * (high - low);
  const double t = cubic_minimum(a, b, low, high);
  const bool near_end = std::min(high - t, t - low) < margin;
  const bool replaced = near_end && (insufficient || t >= high || t <= low);
  insufficient = near_end && !replaced;
  if (!replaced) return t;
  return std::abs(t - high) < std::abs(t - low) ? high - margin : low + margin;
}

}  // namespace

LBFGS::LBFGS(const std::vector<nn::Parameter>& params, const LBFGSOptions& options)
    : Optimizer({.type = "LBFGS",
                 .options = {"lr", "max_iter", "max_eval", "tolerance_grad", "tolerance_change", "history_size",
                             "line_search_fn"},
                 .flags = 1}) {
  nn::refuse_parts("LBFGS", params, "the algorithm needs whole gradients; use another optimizer");
  for (const nn::Parameter& parameter : params)
    LOCKSTEP_CHECK(parameter.sharding() == nn::Sharding::kNone,
                   "LBFGS: a parameter is distributed over the ranks, but the algorithm needs whole gradients; use "
                   "DistributedDataParallel, or another optimizer");
  add_group(params, {options.lr, static_cast<double>(options.max_iter),
                     static_cast<double>(options.max_eval.value_or(options.max_iter * 5 / 4)), options.tolerance_grad,
                     options.tolerance_change, static_cast<double>(options.history_size),
                     static_cast<double>(options.line_search_fn == LineSearch::kStrongWolfe)});
  require_parameters();
}

void LBFGS::check_options(std::span<const double> options) const {
  detail::require_option("LBFGS", "lr", options[kLr]);
  detail::require_option("LBFGS", "tolerance_grad", options[kToleranceGrad]);
  detail::require_option("LBFGS", "tolerance_change", options[kToleranceChange]);
  for (const auto& [name, option] :
       {std::pair{"max_iter", kMaxIter}, {"max_eval", kMaxEval}, {"history_size", kHistorySize}})
    LOCKSTEP_CHECK(options[option] >= 1 && options[option] < 1e15, "LBFGS: {} is {}, expected at least 1", name,
                   options[option]);
}

void LBFGS::step() {
  throw InvalidArgument(
      "LBFGS: step() needs a closure that computes the loss: optimizer.step([&] { ...; return loss; })");
}

// The gradients of all parameters, zeros where there is none.
Tensor LBFGS::flat_gradient() const {
  std::vector<Tensor> parts;
  for (const Slot& slot : slots_) {
    const Tensor* grad = gradient(slot.parameter);
    const Tensor& parameter = slot.parameter.master();
    parts.push_back(grad ? grad->reshape({-1}) : raw::zeros({parameter.numel()}, parameter.options()));
  }
  return parts.size() == 1 ? parts[0].clone() : cat(parts);
}

void LBFGS::move_parameters(double t, const Tensor& direction) const {
  std::int64_t first = 0;
  for (const Slot& slot : slots_) {
    const Tensor& parameter = slot.parameter.master();
    parameter.add_(direction.narrow(0, first, parameter.numel()).view(parameter.shape()), t);
    first += parameter.numel();
  }
}

LBFGS::Point LBFGS::evaluate_at(double t, const Tensor& direction, Evaluate evaluate) const {
  std::vector<Tensor> start;
  for (const Slot& slot : slots_) start.push_back(slot.parameter.master().detach().clone());
  move_parameters(t, direction);
  const double loss = evaluate();
  const Tensor grad = flat_gradient();
  for (std::size_t i = 0; i < slots_.size(); ++i) slots_[i].parameter.master().copy_(start[i]);
  return {.t = t, .loss = loss, .slope = inner_product(grad, direction), .gradient = grad};
}

// A point that satisfies the strong Wolfe conditions, or the best one after `max_evals` further evaluations: first
// brackets such a point, then narrows the bracket.
LBFGS::Point LBFGS::search(const Point& start, double t, const Tensor& direction, std::int64_t max_evals,
                           Evaluate evaluate, std::int64_t& evals) const {
  constexpr double kDecrease = 1e-4, kCurvature = 0.9;
  const auto too_high = [&](const Point& p) { return p.loss > start.loss + kDecrease * p.t * start.slope; };
  const auto is_flat = [&](const Point& p) { return std::abs(p.slope) <= -kCurvature * start.slope; };
  const auto at = [&](double distance) {
    ++evals;
    return evaluate_at(distance, direction, evaluate);
  };

  Point before = start, now = at(t);
  std::int64_t count = 0;
  for (; count < max_evals; ++count) {
    if (too_high(now) || (count > 1 && now.loss >= before.loss)) break;
    if (is_flat(now)) return now;
    if (now.slope >= 0) break;
    const double next = cubic_minimum(before, now, now.t + 0.01 * (now.t - before.t), now.t * 10);
    before = std::exchange(now, at(next));
  }
  Point bracket[2] = {count < max_evals ? before : start, now};
  const auto lower = [&] { return bracket[0].loss <= bracket[1].loss ? 0 : 1; };
  const double smallest = options(0)[kToleranceChange] / largest(direction);
  int low = lower();
  bool insufficient = false, done = false;
  for (; !done && count < max_evals && !(std::abs(bracket[1].t - bracket[0].t) < smallest); ++count) {
    Point trial = at(next_trial(bracket[0], bracket[1], insufficient));
    if (too_high(trial) || trial.loss >= bracket[low].loss) {
      bracket[1 - low] = std::move(trial);
      low = lower();
      continue;
    }
    done = is_flat(trial);
    if (!done && trial.slope * (bracket[1 - low].t - bracket[low].t) >= 0) bracket[1 - low] = bracket[low];
    bracket[low] = std::move(trial);
  }
  return bracket[low];
}

// Adds the last iteration to the history, and multiplies the negative gradient with the approximate inverse Hessian.
Tensor LBFGS::next_direction(const Tensor& gradient) {
  State& s = state_;
  const Tensor y = gradient - s.prev_flat_grad, moved = s.d * s.t;
  if (const double ys = inner_product(y, moved); ys > 1e-10) {
    if (static_cast<double>(s.old_dirs.size()) >= options(0)[kHistorySize]) {
      s.old_dirs.erase(s.old_dirs.begin());
      s.old_stps.erase(s.old_stps.begin());
      s.ro.erase(s.ro.begin());
    }
    s.old_dirs.push_back(y);
    s.old_stps.push_back(moved);
    s.ro.push_back(1 / ys);
    s.h_diag = ys / inner_product(y, y);
  }
  Tensor q = -gradient;
  std::vector<double> al(s.old_dirs.size());
  for (std::size_t i = al.size(); i-- > 0;) {
    al[i] = inner_product(s.old_stps[i], q) * s.ro[i];
    q.add_(s.old_dirs[i], -al[i]);
  }
  q.mul_(s.h_diag);
  for (std::size_t i = 0; i < al.size(); ++i) q.add_(s.old_stps[i], al[i] - inner_product(s.old_dirs[i], q) * s.ro[i]);
  return q;
}

Tensor LBFGS::step(FunctionRef<Tensor()> closure) {
  const TraceSpan span(TraceKind::kOptimizer, type());
  const NoGradGuard no_grad;
  const auto o = options(0);
  const auto max_iter = static_cast<std::int64_t>(o[kMaxIter]), max_eval = static_cast<std::int64_t>(o[kMaxEval]);
  State& s = state_;
  Tensor first;  // the loss of the first call
  const auto run = [&] {
    const EnableGradGuard enable;
    const Tensor value = closure();
    if (!first.defined()) first = value;
    return value.item<double>();
  };
  Point now = {.t = 0, .loss = run(), .slope = 0, .gradient = flat_gradient()};
  std::int64_t evals = 1;
  ++s.func_evals;
  if (largest(now.gradient) <= o[kToleranceGrad]) return first;
  follow(now.gradient);

  for (std::int64_t iteration = 1; iteration <= max_iter; ++iteration) {
    ++s.n_iter;
    s.d = s.n_iter == 1 ? -now.gradient : next_direction(now.gradient);
    s.t = s.n_iter == 1 ? std::min(1.0, 1 / sum(abs(now.gradient)).item<double>()) * o[kLr] : o[kLr];
    s.prev_flat_grad = now.gradient;
    s.prev_loss = now.loss;
    now.slope = inner_product(now.gradient, s.d);
    if (now.slope > -o[kToleranceChange]) break;
    std::int64_t more = 0;
    if (o[kLineSearch] != 0) {
      const Point found = search(now, s.t, s.d, max_eval - evals, run, more);
      s.t = found.t;
      now = {.t = 0, .loss = found.loss, .slope = 0, .gradient = found.gradient};
      move_parameters(s.t, s.d);
    } else {
      move_parameters(s.t, s.d);
      if (iteration < max_iter) now = {.t = 0, .loss = run(), .slope = 0, .gradient = flat_gradient()}, more = 1;
    }
    evals += more;
    s.func_evals += more;
    if (evals >= max_eval || largest(now.gradient) <= o[kToleranceGrad] ||
        largest(s.d) * std::abs(s.t) <= o[kToleranceChange] || std::abs(now.loss - s.prev_loss) < o[kToleranceChange])
      break;
  }
  return first;
}

// Converts the state after the parameters changed their device or dtype.
void LBFGS::follow(const Tensor& like) {
  const auto convert = [&](Tensor& x) {
    if (x.defined()) x = x.to(like.dtype()).to(like.device());
  };
  convert(state_.d);
  convert(state_.prev_flat_grad);
  for (Tensor& x : state_.old_dirs) convert(x);
  for (Tensor& x : state_.old_stps) convert(x);
}

void LBFGS::save_common(StateDict& dict, const std::vector<std::string>& labels) const {
  const State& s = state_;
  if (!s.d.defined()) return;
  const std::string prefix = "state." + labels[0] + ".";
  dict.insert(prefix + "func_evals", to_tensor(s.func_evals));
  dict.insert(prefix + "n_iter", to_tensor(s.n_iter));
  dict.insert(prefix + "t", to_tensor(s.t));
  dict.insert(prefix + "H_diag", to_tensor(s.h_diag));
  dict.insert(prefix + "prev_loss", to_tensor(s.prev_loss));
  dict.insert(prefix + "ro", to_tensor(s.ro));
  dict.insert(prefix + "d", s.d);
  dict.insert(prefix + "prev_flat_grad", s.prev_flat_grad);
  for (std::size_t i = 0; i < s.ro.size(); ++i) {
    dict.insert(fmt::format("{}old_dirs.{}", prefix, i), s.old_dirs[i]);
    dict.insert(fmt::format("{}old_stps.{}", prefix, i), s.old_stps[i]);
  }
}

Callback<void()> LBFGS::prepare_common(const StateReader& reader, const std::vector<std::string>& labels) {
  State s;
  std::int64_t size = 0;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    size += slots_[i].parameter.master().numel();
    const std::string key = "param_group." + labels[i];  // of a state by name
    LOCKSTEP_CHECK(
        !reader.contains(key) || reader.list<std::int64_t>(key)[1] == static_cast<std::int64_t>(i),
        "load_state_dict: {} was saved with the parameters in another order; construct LBFGS with the same one",
        in_quotes(key));
  }
  const std::string prefix = "state." + labels[0] + ".";
  const auto vector = [&](const std::string& name) {
    const Tensor& saved = reader.at(prefix + name);
    LOCKSTEP_CHECK(saved.shape() == Shape{size} && saved.is_floating_point(),
                   "load_state_dict: {} is {}, expected one number for each of the {} elements of the parameters",
                   in_quotes(prefix + name), describe(saved), size);
    return saved.clone();
  };
  if (reader.contains(prefix + "d")) {
    s = {.func_evals = reader.count(prefix + "func_evals"),
         .n_iter = reader.count(prefix + "n_iter"),
         .t = reader.number(prefix + "t"),
         .h_diag = reader.number(prefix + "H_diag"),
         .prev_loss = reader.number(prefix + "prev_loss"),
         .d = vector("d"),
         .prev_flat_grad = vector("prev_flat_grad"),
         .ro = reader.list<double>(prefix + "ro"),
         .old_dirs = {},
         .old_stps = {}};
    for (std::size_t i = 0; i < s.ro.size(); ++i) {
      s.old_dirs.push_back(vector(fmt::format("old_dirs.{}", i)));
      s.old_stps.push_back(vector(fmt::format("old_stps.{}", i)));
    }
  }
  return [this, s = std::move(s)]() mutable { state_ = std::move(s); };
}

}  // namespace lockstep::optim
