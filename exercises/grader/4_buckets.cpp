// Exercise 4: the time of a step with the student's buckets, on a simulated network of 10 Gbit/s Ethernet.
#include <cmath>
#include <numeric>

#include "harness.h"

namespace grader {
namespace {

using exercises::Gradient;
constexpr int kRanks = 4;
constexpr double kTargetMs = 1.5;

// Twelve layers, the last one first: a bias and then a weight each.
std::vector<Gradient> gradients() {
  std::vector<Gradient> all;
  for (const std::int64_t kilobytes : {40, 400, 600, 800, 1000, 1200, 1000, 800, 600, 600, 400, 200}) {
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

// What the ranks wait for communication in a step with these buckets, by real all-reduces on the backend sim.
double exposed_ms(const std::vector<int>& sizes) {
  std::vector<double> exposed(kRanks, 0);
  run_simulated(kRanks, par::find_link("10GbE"), [&](const Group& group, par::Simulation& clock) {
    clock.wait_until(std::floor(clock.seconds()) + 1);  // all ranks begin together
    const double begin = clock.seconds();
    const std::vector<Gradient> all = gradients();
    std::vector<std::shared_ptr<par::Work>> under_way;
    auto next = all.begin();
    for (const int size : sizes) {
      std::int64_t bytes = 0;
      for (int i = 0; i < size; ++i, ++next) {
        bytes += next->bytes;
        clock.compute(next->seconds);
      }
      under_way.push_back(group->all_reduce(ls::ones({bytes / 4})));
    }
    for (const auto& work : under_way) work->wait();
    exposed[static_cast<std::size_t>(group->rank())] = (clock.seconds() - begin) * 1e3 - backward_ms();
  });
  return *std::max_element(exposed.begin(), exposed.end());
}

std::vector<int> chosen() {
  const int count = static_cast<int>(gradients().size());
  const std::vector<int> sizes = exercises::choose_buckets(gradients(), par::find_link("10GbE"), kRanks);
  for (const int size : sizes) require(size > 0, "a bucket of ", size, " gradients, expected 1 or more");
  const int sum = std::accumulate(sizes.begin(), sizes.end(), 0);
  require(sum == count, "the buckets take ", sum, " gradients, there are ", count);
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
  require(exposed < limit, "exposed are ", exposed, " ms, ", what, " ", limit, " ms");
  return text("score: exposed ", exposed, " ms of ", backward_ms() + exposed, " ms; ", what, " ", limit, " ms");
}

}  // namespace

std::vector<Check> checks(const std::string&, const std::string&) {
  const int count = static_cast<int>(gradients().size());
  const double one = exposed_ms({count}), each = exposed_ms(std::vector<int>(static_cast<std::size_t>(count), 1));
  return {{"every gradient in one bucket", check_all_in},
          {"better than one bucket for all", [one] { return check_below(one, "one bucket has"); }},
          {"better than a bucket for each", [each] { return check_below(each, "a bucket for each has"); }},
          {"the target", [] { return check_below(kTargetMs, "the target is"); }}};
}

}  // namespace grader
