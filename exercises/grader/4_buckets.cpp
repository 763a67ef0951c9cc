// Exercise 4: the time of a step with the student's buckets, on a simulated network of 10 Gbit/s Ethernet.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "harness.h"

namespace grader {
namespace {

using exercises::Gradient;
constexpr int kRanks = 4;

// The layers' weights in kB, the last layer first. They differ so much that buckets that meet the target of one seed meet
// that of few others.
std::vector<std::int64_t> weights() {
  if (seed_of() == 0) return {40, 400, 600, 800, 1000, 1200, 1000, 800, 600, 600, 400, 200};
  Dice dice(seed_of());
  std::vector<std::int64_t> kilobytes(static_cast<std::size_t>(13 + dice.roll(4)));  // never as many as with seed 0
  for (std::int64_t& each : kilobytes) each = 40 + 20 * dice.roll(59);
  return kilobytes;
}

// For each layer a bias and then a weight.
std::vector<Gradient> gradients() {
  std::vector<Gradient> all;
  for (const std::int64_t kilobytes : weights()) {
    all.push_back({4'000, 20e-6});
    all.push_back({kilobytes * 1000, 1e-6 * (200 + 1.1 * static_cast<double>(kilobytes))});
  }
  return all;
}

double backward_ms() {
  double seconds = 0;
  for (const Gradient& gradient : gradients()) seconds += gradient.seconds;
  return seconds * 1e3;
}

// The time for which the ranks wait for communication in a step with these buckets: real all-reduces on the backend sim.
double exposed_ms(const std::vector<int>& sizes) {
  std::vector<double> exposed(kRanks, 0);
  run_simulated(kRanks, par::find_link("10GbE"), [&](const Group& group, par::Simulation& clock) {
    clock.wait_until(std::floor(clock.seconds()) + 1);  // all ranks begin together
    const double begin = clock.seconds();
    const std::vector<Gradient> all = gradients();
    std::vector<std::shared_ptr<par::Work>> works;
    auto next = all.begin();
    for (const int size : sizes) {
      std::int64_t bytes = 0;
      for (int i = 0; i < size; ++i, ++next) {
        bytes += next->bytes;
        clock.compute(next->seconds);
      }
      works.push_back(group->all_reduce(ls::ones({bytes / 4})));
    }
    for (const auto& work : works) work->wait();
    exposed[static_cast<std::size_t>(group->rank())] = (clock.seconds() - begin) * 1e3 - backward_ms();
  });
  return *std::max_element(exposed.begin(), exposed.end());
}

// A bucket is closed before a gradient that would take it past the cap.
std::vector<int> buckets_by_cap(std::int64_t cap) {
  std::vector<int> sizes;
  std::int64_t bytes = cap;
  for (const Gradient& gradient : gradients()) {
    if (bytes + gradient.bytes > cap) {
      sizes.push_back(0);
      bytes = 0;
    }
    bytes += gradient.bytes;
    ++sizes.back();
  }
  return sizes;
}

// The exposed communication by the alpha-beta model.
double planned_ms(const std::vector<int>& sizes) {
  const par::Link link = par::find_link("10GbE");
  const std::vector<Gradient> all = gradients();
  double ready = 0, done = 0;
  std::size_t next = 0;
  for (const int size : sizes) {
    double bytes = 0;
    for (int i = 0; i < size; ++i, ++next) {
      bytes += static_cast<double>(all[next].bytes);
      ready += all[next].seconds;
    }
    done = std::max(done, ready) + 2.0 * (kRanks - 1) * link.seconds(bytes / kRanks);
  }
  return (done - ready) * 1e3;
}

// 3 % above the best plan by a single cap, a multiple of 100 kB, rounded up to 0.05 ms.
double target_ms() {
  double best = planned_ms(buckets_by_cap(1));
  for (std::int64_t cap = 400'000; cap <= 3'200'000; cap += 100'000)
    best = std::min(best, planned_ms(buckets_by_cap(cap)));
  return std::ceil(best * 1.03 * 20) / 20;
}

std::vector<int> chosen() {
  const int count = static_cast<int>(gradients().size());
  const std::vector<int> sizes = exercises::choose_buckets(gradients(), par::find_link("10GbE"), kRanks);
  for (const int size : sizes) require(size > 0, "a bucket of ", size, " gradients, expected 1 or more");
  const int sum = std::accumulate(sizes.begin(), sizes.end(), 0);
  require(sum == count, "the buckets hold ", sum, " gradients, there are ", count);
  return sizes;
}

std::string check_all_in() {
  const std::vector<int> sizes = chosen();
  std::string list;
  for (const int size : sizes) list += (list.empty() ? "" : " ") + std::to_string(size);
  return text(sizes.size(), " buckets: ", list);
}

std::string check_below(double limit, const std::string& what) {
  const double exposed = exposed_ms(chosen());
  require(exposed < limit, "the exposed communication takes ", exposed, " ms, ", what, " ", limit, " ms");
  return text("score: ", exposed, " ms exposed of ", backward_ms() + exposed, " ms; ", what, " ", limit, " ms");
}

}  // namespace

std::vector<Check> checks(const std::string&, const std::string&) {
  const int count = static_cast<int>(gradients().size());
  const double one = exposed_ms({count}), each = exposed_ms(std::vector<int>(static_cast<std::size_t>(count), 1));
  const double target = target_ms();
  std::string task = "weights of";
  for (const std::int64_t kilobytes : weights()) task += ' ' + std::to_string(kilobytes);
  print_task(text(task, " kB, the last layer first; the target is ", target, " ms"));
  return {{"every gradient in exactly one bucket", check_all_in},
          {"better than one bucket for all", [one] { return check_below(one, "one bucket has"); }},
          {"better than a bucket for each", [each] { return check_below(each, "a bucket for each has"); }},
          {"the target", [target] { return check_below(target, "the target is"); }}};
}

}  // namespace grader
