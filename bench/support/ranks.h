// Benchmarks over several processes: forks the ranks, runs them together, and returns rank 0's figures.
#pragma once

#include <lockstep/lockstep.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "support/timing.h"

namespace bench {

namespace ls = lockstep;
using Group = std::shared_ptr<ls::parallel::ProcessGroup>;

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Shared by forked ranks in addition to a group: a barrier that spins, and room for figures.
struct Shared {
  std::atomic<int> arrived{0};
  std::atomic<int> round{0};
  double results[64][8] = {};

  // The greatest first figure of ranks [0, size).
  double greatest(int size) const {
    double most = 0;
    for (int rank = 0; rank < size; ++rank) most = std::max(most, results[rank][0]);
    return most;
  }
  void meet(int size) {
    const int now = round.load();
    if (arrived.fetch_add(1) + 1 == size) {
      arrived.store(0);
      round.store(now + 1);
    }
    for (long spins = 0; round.load() == now; ++spins) {
      if (spins > 1000) sched_yield();
    }
  }
};

// Runs fn(rank, shared) in `size` processes; `pinned`: each on its own core, if there are enough.
inline Shared* run_ranks(int size, const std::function<void(int, Shared&)>& fn, bool pinned = true) {
  void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  auto* const shared = new (memory) Shared;
  const int cores = ls::usable_cores();
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      if (pinned && size <= cores) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(static_cast<std::size_t>(rank), &one);
        sched_setaffinity(0, sizeof(one), &one);
      }
      ls::set_num_threads(1);
      fn(rank, *shared);
      std::fflush(stdout);
      _exit(0);
    }
    children.push_back(child);
  }
  bool good = true;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    good = good && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  if (!good) {
    std::fprintf(stderr, "a rank failed\n");
    std::exit(1);
  }
  return shared;
}

// The same, with a group of the backend shm unless `options` name another. gloo is not pinned, as it has its own
// threads.
inline Shared* run_group(int size, const std::function<void(const Group&, Shared&)>& fn,
                         ls::parallel::InitOptions options = {}) {
  static int runs = 0;
  const std::string port = std::to_string(20000 + (getpid() * 8 + runs++) % 40000);
  const auto join_and_run = [&](int rank, Shared& shared) {
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", port.c_str(), 1);
    ls::parallel::InitOptions own = options;
    own.world_size = size;
    own.rank = rank;
    fn(ls::parallel::init_process_group(own), shared);
  };
  return run_ranks(size, join_and_run, options.backend != "gloo");
}

// The median time of some calls of `step`, which all `size` ranks begin together.
inline double time_together(Shared& shared, int size, const std::function<void()>& step) {
  constexpr int kSteps = 4;
  std::vector<double> seconds;
  for (int i = 0; i < kSteps; ++i) {
    shared.meet(size);
    const double start = seconds_now();
    step();
    seconds.push_back(seconds_now() - start);
  }
  return median(seconds);
}

inline void print_row(const std::string& name, double seconds) {
  std::printf("{\"name\": \"%s\", \"seconds\": %.4e}\n", name.c_str(), seconds);
  std::fflush(stdout);
}

// Prints the time of each variant: the median over rounds, in each of which all variants run in turn.
template <class Variants, class TimeOf>
void compare_times(const std::string& prefix, const Variants& variants, const TimeOf& time_of) {
  constexpr int kRounds = 5;
  std::map<std::string, std::vector<double>> seconds;
  for (int round = 0; round < kRounds; ++round) {
    for (const auto& of : variants) seconds[of.name].push_back(time_of(of));
  }
  for (const auto& of : variants) print_row(prefix + of.name, median(seconds[of.name]));
}

}  // namespace bench
