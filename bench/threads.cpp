// One operation with two threads against one: wall-clock time of forward and backward, sizes from 1,000 elements on.
//   bench_threads [--threads 2] [--rounds 11] [--filter softmax]
// The goal: no operation is slower with two threads than with one by more than 5 % or 3 us; fork_join at most 3 us.
// Both counts take turns in one process. Exits with 1 if an operation misses the goal. Then compares the fork and join of
// our pool with those of libgomp and oneTBB, where CMake found them.
#include <lockstep/lockstep.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "pools/pools.h"
#include "support/arguments.h"
#include "support/timing.h"

namespace ls = lockstep;

namespace {

using Clock = std::chrono::steady_clock;

struct Row {
  std::string name;
  std::function<void()> work;
  std::vector<double> one = {}, many = {};  // seconds, by round
};

// Seconds of one call, over about 5 ms.
double seconds_of(const std::function<void()>& work) {
  const auto repeat = [&](long times) {
    const auto start = Clock::now();
    for (long i = 0; i < times; ++i) work();
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  repeat(3);  // starts the pool, fills the caches
  const long times = std::max(1L, static_cast<long>(5e-3 / std::max(repeat(3) / 3, 1e-7)));
  return repeat(times) / static_cast<double>(times);
}

// Forward, and backward with a gradient of ones.
std::function<void()> step(const std::vector<ls::Tensor>& leaves,
                           const std::function<ls::Tensor(const std::vector<ls::Tensor>&)>& forward) {
  for (const ls::Tensor& leaf : leaves) leaf.requires_grad_();
  const ls::Tensor ones = ls::ones_like(forward(leaves)).detach();
  return [=] {
    for (const ls::Tensor& leaf : leaves) leaf.set_grad({});
    forward(leaves).backward(ones);
  };
}

void add_rows(std::vector<Row>& rows, std::int64_t count) {
  const std::int64_t width = std::min<std::int64_t>(count, 256);
  const ls::Shape shape{count / width, width};
  const auto add = [&](const std::string& name, const std::vector<ls::Tensor>& leaves, auto forward) {
    rows.push_back({name + " " + std::to_string(count), step(leaves, forward)});
  };
  using In = const std::vector<ls::Tensor>&;
  add("add", {ls::randn(shape), ls::randn(shape)}, [](In in) { return in[0] + in[1]; });
  add("gelu", {ls::randn(shape)}, [](In in) { return ls::gelu(in[0]); });
  add("sum", {ls::randn(shape)}, [](In in) { return ls::sum(in[0]); });
  add("sum_rows", {ls::randn(shape)}, [](In in) { return ls::sum(in[0], {0}); });
  add("softmax", {ls::randn(shape)}, [](In in) { return ls::softmax(in[0], 1); });
  add("layer_norm", {ls::randn(shape), ls::randn({width}), ls::randn({width})},
      [=](In in) { return ls::layer_norm(in[0], {width}, in[1], in[2]); });
  add("linear", {ls::randn(shape), ls::randn({64, width}), ls::randn({64})},
      [](In in) { return ls::linear(in[0], in[1], in[2]); });
}

void fork_join(int threads) {
  ls::parallel_for(
      threads, [](void*, std::int64_t) {}, nullptr);
}

// The median of 100 forks and joins after 2 ms without work, when the workers may sleep.
double seconds_after_idleness(const std::function<void()>& work) {
  std::vector<double> seconds;
  for (int i = 0; i < 100; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const auto start = Clock::now();
    work();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  return bench::median(seconds);
}

// One pool after another: threads of an idle pool sleep within milliseconds.
void compare_pools(int threads) {
  std::printf("\n%-20s %12s %12s\n", "fork and join, us", "one by one", "after 2 ms");
  const auto row = [&](const char* pool, const std::function<void()>& work) {
    std::vector<double> seconds;
    for (int i = 0; i < 11; ++i) seconds.push_back(seconds_of(work));
    const double later = seconds_after_idleness(work);
    std::printf("%-20s %12.2f %12.2f\n", pool, 1e6 * bench::median(seconds), 1e6 * later);
  };
  row("ours", [=] { fork_join(threads); });
#if LOCKSTEP_BENCH_OPENMP
  row("OpenMP", [=] { bench::openmp_fork_join(threads); });
#else
  std::printf("skipped: OpenMP, which CMake did not find\n");
#endif
#if LOCKSTEP_BENCH_TBB
  row("oneTBB", [=] { bench::tbb_fork_join(threads); });
#else
  std::printf("skipped: oneTBB, which CMake did not find (libtbb-dev)\n");
#endif
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments arguments(argc, argv);
  const int threads = std::stoi(arguments.get("threads", "2")), rounds = std::stoi(arguments.get("rounds", "11"));
  ls::manual_seed(0);
  std::vector<Row> rows;
  rows.push_back({"fork_join", [=] { fork_join(threads); }});
  for (std::int64_t count = 1 << 10; count <= 1 << 20; count *= 4) add_rows(rows, count);
  std::erase_if(rows, [&](const Row& row) { return row.name.find(arguments.get("filter")) == std::string::npos; });

  for (int round = 0; round < rounds; ++round) {
    for (Row& row : rows) {
      for (const bool is_first : {true, false}) {
        const bool is_one = is_first == (round % 2 == 0);
        ls::set_num_threads(is_one ? 1 : threads);
        (is_one ? row.one : row.many).push_back(seconds_of(row.work));
      }
    }
  }
  std::printf("%-20s %10s %10s %7s\n", "us", "1 thread", (std::to_string(threads) + " threads").c_str(), "ratio");
  bool is_good = true;
  for (const Row& row : rows) {
    const double one = 1e6 * bench::median(row.one), many = 1e6 * bench::median(row.many);
    const bool is_slower = many > std::max(1.05 * one, one + 3);
    is_good = is_good && !is_slower;
    std::printf("%-20s %10.2f %10.2f %7.2f%s\n", row.name.c_str(), one, many, many / one, is_slower ? "  SLOWER" : "");
  }
  ls::set_num_threads(threads);
  compare_pools(threads);
  return is_good ? 0 : 1;
}
