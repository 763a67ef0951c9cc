#include "tools/report/costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

namespace report {
namespace {

using lockstep::TraceEvent;
using lockstep::TraceKind;
using lockstep::parallel::Phase;

constexpr double kNear = 0.02;  // relative difference: buckets have padding and metadata

// The time of the outermost optimizer steps, without waits and copies in them.
std::int64_t optimizer_time(const Lane& lane) {
  std::int64_t sum = 0, step_end = 0, moved_end = 0;  // ends of the last optimizer step, and of the last wait or copy
  for (const LaneEvent& each : lane.events) {
    const TraceEvent& event = each.event;
    if (each.depth < 0) continue;
    const bool is_moving = event.kind == TraceKind::kWait || event.kind == TraceKind::kCopy;
    if (event.begin < step_end) {
      if (!is_moving || event.begin < moved_end) continue;
      sum -= event.end - event.begin;
      moved_end = event.end;
    } else if (event.kind == TraceKind::kOptimizer) {
      step_end = event.end;
      sum += event.end - event.begin;
    }
  }
  return std::max<std::int64_t>(sum, 0);
}

bool is_near(double value, double expected) { return std::abs(value - expected) <= kNear * expected; }

}  // namespace

const StepView& median_step(const std::vector<StepView>& steps) {
  std::vector<std::size_t> order(steps.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return steps[i].end - steps[i].begin; });
  return steps[order[(order.size() - 1) / 2]];
}

StepCosts costs_of(const Run& run, const StepView& step) {
  const std::size_t count = run.has_ranks() ? step.lanes.size() : 1;
  Shares shares;
  StepCosts costs{.lanes = static_cast<int>(step.lanes.size()), .step = step.end - step.begin};
  for (std::size_t i = 0; i < count; ++i) {
    shares += step.lanes[i].shares;
    costs.optimizer += optimizer_time(step.lanes[i]);
  }
  const auto lanes = static_cast<std::int64_t>(count);
  costs.optimizer /= lanes;
  costs.model = std::max<std::int64_t>(shares.compute / lanes - costs.optimizer, 0);
  costs.communication = shares.communication / lanes;
  costs.waiting = shares.waiting / lanes;
  costs.other = shares.other / lanes;
  costs.apart = costs.step - costs.model - costs.optimizer - costs.communication - costs.waiting - costs.other;
  return costs;
}

double ByteFormula::multiple(int devices) const {
  const double n = devices;
  if (kind == Kind::kNone) return 0;
  return kind == Kind::kHub ? 2 * (n - 1) : 2 * passes * (n - 1) / n;
}

std::string ByteFormula::text() const {
  return kind == Kind::kHub ? "2 (n-1) P" : fmt::format("{} (n-1)/n P", 2 * passes);
}

ByteFormula formula_of(const Run& run, int devices) {
  if (!run.is_counted || run.gradient_bytes <= 0 || run.counters.steps <= 0 || devices < 2) return {};
  std::map<int, double> through;  // by device or rank
  for (const auto& link : run.counters.in_steps) {
    if (link.phase != Phase::kParameters && link.phase != Phase::kGradients) continue;
    through[link.from] += static_cast<double>(link.bytes);
    through[link.to] += static_cast<double>(link.bytes);
  }
  double most = 0;
  for (const auto& [end, bytes] : through) most = std::max(most, bytes);
  const double measured = most / static_cast<double>(run.counters.steps * run.gradient_bytes);
  std::vector<ByteFormula> candidates;
  if (run.mode == "dp") candidates = {{ByteFormula::Kind::kHub, 1}};
  if (run.mode == "ddp" || run.is_sharded())
    candidates = {{ByteFormula::Kind::kRanks, 2}, {ByteFormula::Kind::kRanks, 3}};
  for (const ByteFormula& candidate : candidates)
    if (is_near(measured, candidate.multiple(devices))) return candidate;
  return {};
}

}  // namespace report
