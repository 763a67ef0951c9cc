// Exercise 8: what was worked out on paper, beside the simulated network. The bytes are those that real steps move.
#include <cmath>

#include "harness.h"

namespace grader {
namespace {

constexpr std::int64_t kRows = 8;  // a device and step
constexpr int kMostRanks = 64;
constexpr double kTolerance = 0.1;

struct Mlp : ls::nn::Module {
  ls::nn::Linear& fc1 = add<ls::nn::Linear>("fc1", 256, 168);
  ls::nn::Linear& fc2 = add<ls::nn::Linear>("fc2", 168, 128);
  ls::nn::Linear& fc3 = add<ls::nn::Linear>("fc3", 128, 96);
  ls::nn::Linear& fc4 = add<ls::nn::Linear>("fc4", 96, 10);
  ls::Tensor forward(const ls::Tensor& x) const override { return fc4(ls::relu(fc3(ls::relu(fc2(ls::relu(fc1(x))))))); }
};

template <class Mode>
void step(Mode& mode, std::int64_t rows) {
  const ls::Tensor error = mode(ls::ones({rows, 256})) - ls::ones({rows, 10});
  ls::mean(error * error).backward();
}

// Bytes of a DataParallel step between device 0 and one other, in the order in which they have to wait for each other.
std::vector<std::int64_t> dp_messages() {
  Mlp mlp;
  par::DataParallel dp(mlp, {"cpu:0", "cpu:1"});
  step(dp, 2 * kRows);
  std::int64_t out = 0, outputs = 0, loss = 0, gradients = 0;
  for (const par::LinkTraffic& link : dp.traffic().step_links()) {
    if (link.phase == par::Phase::kInputs || link.phase == par::Phase::kParameters) out += link.bytes;
    if (link.phase == par::Phase::kOutputs) outputs += link.bytes;
    if (link.phase == par::Phase::kLossGradient) loss += link.bytes;
    if (link.phase == par::Phase::kGradients) gradients += link.bytes;
  }
  return {out, outputs, loss, gradients};
}

double dp_ms(const par::Link& link, const std::vector<std::int64_t>& messages, int devices) {
  std::vector<double> times(static_cast<std::size_t>(devices), 0);
  const auto hops = [&](int number) {
    std::vector<par::Hop> all;
    for (int d = 1; d < devices; ++d) {
      const bool goes_out = number % 2 == 0;
      all.push_back({goes_out ? 0 : d, goes_out ? d : 0, 0, messages[static_cast<std::size_t>(number)], false});
    }
    return all;
  };
  par::simulate(link, static_cast<int>(messages.size()), hops, 1, times);
  return *std::max_element(times.begin(), times.end()) * 1e3;
}

constexpr double kBucketMb = 1e-6;  // so small that every parameter has a bucket of its own

std::vector<std::int64_t> bucket_bytes() {
  std::vector<std::int64_t> bytes;
  run_ranks(1, [&](const Group& group) {
    Mlp mlp;
    const par::DistributedDataParallel ddp(mlp, group, {.bucket_cap_mb = kBucketMb});
    for (const par::BucketStats& bucket : ddp.stats().buckets) bytes.push_back(bucket.bytes);
  });
  return bytes;
}

double ddp_ms(const par::Link& link, const std::vector<std::int64_t>& buckets, int ranks) {
  std::vector<double> times(static_cast<std::size_t>(ranks), 0);
  for (const std::int64_t bytes : buckets) {
    const par::HopPlan plan(par::Algorithm::kRing, ranks, bytes / 4);
    par::simulate(
        link, plan.steps(), [&](int number) { return plan.step(number); }, 4, times);
  }
  return *std::max_element(times.begin(), times.end()) * 1e3;
}

// The same by a step of DistributedDataParallel on the backend sim.
double run_ddp_ms(const par::Link& link, int ranks) {
  std::vector<double> times(static_cast<std::size_t>(ranks), 0);
  run_simulated(ranks, link, [&](const Group& group, par::Simulation& clock) {
    Mlp mlp;
    par::DistributedDataParallel ddp(mlp, group, {.bucket_cap_mb = kBucketMb});
    step(ddp, kRows);                                   // the first one also plans the buckets
    clock.wait_until(std::floor(clock.seconds()) + 1);  // all ranks begin together
    const double begin = clock.seconds();
    step(ddp, kRows);
    times[static_cast<std::size_t>(group->rank())] = clock.seconds() - begin;
  });
  return *std::max_element(times.begin(), times.end()) * 1e3;
}

}  // namespace

std::vector<Check> checks(const std::string& file, const std::string&) {
  const auto answers = std::make_shared<Answers>(file);
  const par::Link link = par::find_link("10GbE");
  const std::vector<std::int64_t> messages = dp_messages(), buckets = bucket_bytes();
  const double ran = run_ddp_ms(link, 8), simulated = ddp_ms(link, buckets, 8);
  if (std::abs(ran - simulated) > 0.01 * ran)
    throw ls::Error(text("a step of 8 ranks takes ", ran, " ms on sim, its buckets ", simulated, " ms"));
  int crossing = 2;
  while (crossing < kMostRanks && dp_ms(link, messages, crossing) <= ddp_ms(link, buckets, crossing)) ++crossing;

  std::vector<Check> all;
  const auto add = [&](const std::string& key, double want, const char* unit) {
    all.push_back(
        {key, [answers, key, want, unit] { return require_near(answers->number(key), want, kTolerance, unit); }});
  };
  for (const int ranks : {8, 32}) {
    add("dp_ms_at_" + std::to_string(ranks), dp_ms(link, messages, ranks), " ms");
    add("ddp_ms_at_" + std::to_string(ranks), ddp_ms(link, buckets, ranks), " ms");
  }
  add("dp_is_slower_from", crossing, " devices");
  return all;
}

}  // namespace grader
