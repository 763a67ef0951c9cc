// Exercise 8: the times worked out on paper against the simulated network. The bytes are those of real steps.
#include <cmath>

#include "harness.h"

namespace grader {
namespace {

constexpr int kMostRanks = 64;
constexpr double kTolerance = 0.1, kTie = 1e-3;

struct Variant {
  int inputs = 256, classes = 10;
  int samples = 8;  // of a device in a step
};

// All variants have a number of devices from 2 to kMostRanks from which DP is slower.
Variant variant_of(std::uint64_t seed) {
  if (seed == 0) return {};
  Dice dice(seed);
  return {.inputs = 256 + 8 * dice.roll(16), .classes = 8 + dice.roll(8), .samples = 4 + dice.roll(9)};
}

struct Mlp : ls::nn::Module {
  ls::nn::Linear &fc1, &fc2, &fc3, &fc4;
  explicit Mlp(const Variant& v)
      : fc1(add<ls::nn::Linear>("fc1", v.inputs, 168)), fc2(add<ls::nn::Linear>("fc2", 168, 128)),
        fc3(add<ls::nn::Linear>("fc3", 128, 96)), fc4(add<ls::nn::Linear>("fc4", 96, v.classes)) {}
  ls::Tensor forward(const ls::Tensor& x) const override { return fc4(ls::relu(fc3(ls::relu(fc2(ls::relu(fc1(x))))))); }
};

template <class Mode>
void step(Mode& mode, const Variant& v, int samples) {
  const ls::Tensor error = mode(ls::ones({samples, v.inputs})) - ls::ones({samples, v.classes});
  ls::mean(error * error).backward();
}

// Bytes of the four messages of a DataParallel step between device 0 and one other; each depends on the one before.
std::vector<std::int64_t> dp_messages(const Variant& v) {
  Mlp mlp(v);
  par::DataParallel dp(mlp, {"cpu:0", "cpu:1"});
  step(dp, v, 2 * v.samples);
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

std::vector<std::int64_t> bucket_bytes(const Variant& v) {
  std::vector<std::int64_t> bytes;
  run_ranks(1, [&](const Group& group) {
    Mlp mlp(v);
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

// The time by a step of DistributedDataParallel on the backend sim.
double run_ddp_ms(const Variant& v, const par::Link& link, int ranks) {
  std::vector<double> times(static_cast<std::size_t>(ranks), 0);
  run_simulated(ranks, link, [&](const Group& group, par::Simulation& clock) {
    Mlp mlp(v);
    par::DistributedDataParallel ddp(mlp, group, {.bucket_cap_mb = kBucketMb});
    step(ddp, v, v.samples);                            // the first step also plans the buckets
    clock.wait_until(std::floor(clock.seconds()) + 1);  // all ranks begin together
    const double begin = clock.seconds();
    step(ddp, v, v.samples);
    times[static_cast<std::size_t>(group->rank())] = clock.seconds() - begin;
  });
  return *std::max_element(times.begin(), times.end()) * 1e3;
}

}  // namespace

std::vector<Check> checks(const std::string& file, const std::string&) {
  const auto answers = std::make_shared<Answers>(file);
  const Variant v = variant_of(seed_of(answers.get()));
  print_task(
      text("an MLP ", v.inputs, " -> 168 -> 128 -> 96 -> ", v.classes, ", ", v.samples, " samples on each device"));
  const par::Link link = par::find_link("10GbE");
  const std::vector<std::int64_t> messages = dp_messages(v), buckets = bucket_bytes(v);
  const double ran = run_ddp_ms(v, link, 8), simulated = ddp_ms(link, buckets, 8);
  if (std::abs(ran - simulated) > 0.01 * ran)
    throw ls::Error(text("a step of 8 ranks takes ", ran, " ms on sim, its buckets ", simulated, " ms"));
  const auto ratio = [&](int n) { return dp_ms(link, messages, n) / ddp_ms(link, buckets, n); };
  int crossing = 2;
  while (crossing < kMostRanks && ratio(crossing) <= 1) ++crossing;

  std::vector<Check> all;
  const auto add = [&](const std::string& key, double ms) {
    all.push_back({key, [answers, key, ms] { return require_near(answers->number(key), ms, kTolerance, " ms"); }});
  };
  for (const int ranks : {8, 32}) {
    add("dp_ms_at_" + std::to_string(ranks), dp_ms(link, messages, ranks));
    add("ddp_ms_at_" + std::to_string(ranks), ddp_ms(link, buckets, ranks));
  }
  if (crossing == kMostRanks) throw ls::Error(text("DP is not slower than DDP on fewer than ", kMostRanks, " devices"));
  // If both take the same time within kTie, the padding of buckets decides: then the number next to it is accepted, too.
  const int least = crossing > 2 && ratio(crossing - 1) > 1 - kTie ? crossing - 1 : crossing;
  const int most = ratio(crossing) < 1 + kTie ? crossing + 1 : crossing;
  all.push_back({"dp_is_slower_from", [answers, crossing, least, most] {
                   const double answer = answers->number("dp_is_slower_from");
                   const bool is_tie = answer == least || answer == most;
                   return require_near(answer, is_tie ? answer : crossing, 0, " devices");
                 }});
  return all;
}

}  // namespace grader
