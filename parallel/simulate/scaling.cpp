#include "lockstep/parallel/simulate/scaling.h"

#include <algorithm>
#include <cmath>

#include "lockstep/base/check_internal.h"

namespace lockstep::parallel {
namespace {

double latest(const std::vector<double>& times) { return *std::ranges::max_element(times); }

// Simulates messages of `bytes` between device 0 and each other device, with one byte per element.
void exchange_with_first(const Link& link, double bytes, bool to_first, std::vector<double>& times) {
  const int n = static_cast<int>(times.size());
  const auto hops = [&](int) {
    std::vector<Hop> result;
    for (int r = 1; r < n; ++r)
      result.push_back({.from = to_first ? r : 0, .to = to_first ? 0 : r, .end = static_cast<std::int64_t>(bytes)});
    return result;
  };
  simulate(link, 1, hops, 1, times);
}

double predict_dp(const StepProfile& profile, const ScalingOptions& options, int ranks) {
  const double share = options.fixed_batch ? 1.0 / ranks : 1;
  const Link& link = options.link;
  std::vector<double> times(static_cast<std::size_t>(ranks), 0);
  exchange_with_first(link, profile.parameter_bytes() + share * profile.input_bytes, false, times);
  for (double& time : times) time += share * profile.forward;
  exchange_with_first(link, share * profile.output_bytes, true, times);
  std::ranges::fill(times, latest(times));  // the loss needs all outputs
  exchange_with_first(link, share * profile.output_bytes, false, times);
  for (double& time : times) time += share * profile.backward();
  exchange_with_first(link, profile.parameter_bytes(), true, times);
  return latest(times) + profile.optimizer;
}

double predict_ddp(const StepProfile& profile, const ScalingOptions& options, int ranks) {
  const double share = options.fixed_batch ? 1.0 / ranks : 1;
  const double end = share * (profile.forward + profile.backward());
  double ready = share * profile.forward, free = options.overlap ? 0 : end;  // time at which the network is free
  for (const StepProfile::Bucket& bucket : profile.buckets) {
    ready += share * bucket.backward;
    std::vector<double> times(static_cast<std::size_t>(ranks), 0);
    const HopPlan plan(options.algorithm, ranks, static_cast<std::int64_t>(bucket.bytes));
    simulate(
        options.link, plan.steps(), [&](int step) { return plan.step(step); }, 1, times);
    free = std::max(free, ready) + latest(times);
  }
  return std::max(free, end) + profile.optimizer;
}

void check(const StepProfile& profile, int ranks) {
  const auto is_time = [](double value) { return std::isfinite(value) && value >= 0; };
  LOCKSTEP_CHECK(ranks >= 1, "scaling: {} ranks, expected 1 or more", ranks);
  LOCKSTEP_CHECK(!profile.buckets.empty(), "scaling: the profile has no buckets of gradients; expected 1 or more");
  bool is_right = is_time(profile.forward) && is_time(profile.optimizer) && is_time(profile.input_bytes) &&
                  is_time(profile.output_bytes);
  for (const auto& bucket : profile.buckets) is_right = is_right && is_time(bucket.bytes) && is_time(bucket.backward);
  LOCKSTEP_CHECK(is_right && profile.parameter_bytes() + profile.input_bytes + profile.output_bytes < 1e15,
                 "scaling: the profile has times or bytes that are negative or too large; expected none of them");
}

}  // namespace

double StepProfile::backward() const {
  double sum = 0;
  for (const Bucket& bucket : buckets) sum += bucket.backward;
  return sum;
}

double StepProfile::parameter_bytes() const {
  double sum = 0;
  for (const Bucket& bucket : buckets) sum += bucket.bytes;
  return sum;
}

StepPrediction predict_step(const StepProfile& profile, const ScalingOptions& options, int ranks) {
  check(profile, ranks);
  const double share = options.fixed_batch ? 1.0 / ranks : 1;
  const double computing = share * (profile.forward + profile.backward()) + profile.optimizer;
  StepPrediction step{
      .ranks = ranks, .dp = predict_dp(profile, options, ranks), .ddp = predict_ddp(profile, options, ranks)};
  step.dp_exposed = step.dp - computing;
  step.ddp_exposed = step.ddp - computing;
  step.dp_device_bytes =
      (ranks - 1) * (2 * profile.parameter_bytes() + share * (profile.input_bytes + 2 * profile.output_bytes));
  for (const auto& bucket : profile.buckets)
    step.ddp_rank_bytes += HopPlan(options.algorithm, ranks, static_cast<std::int64_t>(bucket.bytes)).ideal_sent();
  return step;
}

}  // namespace lockstep::parallel
