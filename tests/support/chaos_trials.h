// Random faults: a seed picks the number of ranks, the victim, the moment and the fault. After each trial all ranks
// have ended, each survivor has named the victim and has the bits of a run without the fault, and no resource is left
// behind. LOCKSTEP_CHAOS_TRIALS sets the number of trials, LOCKSTEP_CHAOS_SEED the first seed, which repeats a
// trial (scripts/chaos.sh).
#pragma once

#include <dirent.h>
#include <signal.h>

#include <chrono>
#include <random>
#include <thread>

#include "tests/support/chaos.h"

inline int from_environment(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}

// Counts the file descriptors and threads of this process.
inline std::pair<int, int> resources() {
  const auto entries = [](const char* path) {
    int count = 0;
    DIR* const folder = opendir(path);
    while (folder && readdir(folder)) ++count;
    if (folder) closedir(folder);
    return count;
  };
  return {entries("/proc/self/fd"), entries("/proc/self/task")};
}

enum class Fault { kKill, kThrow, kExit, kStop };

struct Trial {
  explicit Trial(int seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    size = 2 + static_cast<int>(random() % 4);
    victim = static_cast<int>(random() % static_cast<unsigned>(size));
    moment = static_cast<int>(random() % 40);
    fault = static_cast<Fault>(random() % 4);
  }
  int size, victim, moment;
  Fault fault;
};

// Runs one trial with processes as ranks; `backend`: shm or gloo.
inline void check_processes_survive(const Trial& trial, const std::string& backend) {
  // Only the timeout reveals a stopped rank; the survivors then kill it, as a launcher would.
  const auto timeout = trial.fault == Fault::kStop ? std::chrono::milliseconds(2500) : std::chrono::seconds(20);
  const auto ended = ranks_of(
      trial.size,
      [&](const Group& group) {
        const ls::Tensor pids = ls::zeros({group->size()}, {.dtype = ls::kInt64});
        group->all_gather(pids, ls::full({1}, getpid(), {.dtype = ls::kInt64}))->wait();
        train_until(group, trial.victim, trial.moment, [&] {
          if (trial.fault == Fault::kKill) raise(SIGKILL);
          if (trial.fault == Fault::kThrow) throw ls::InvalidArgument("the victim's own error");
          if (trial.fault == Fault::kExit) _exit(5);
          raise(SIGSTOP);
        });
        if (trial.fault == Fault::kStop) kill(static_cast<pid_t>(pids[trial.victim].item<std::int64_t>()), SIGKILL);
      },
      timeout, backend);
  for (int r = 0; r < trial.size; ++r) {
    const ExitStatus& status = ended[static_cast<std::size_t>(r)];
    if (r != trial.victim)
      CHECK_MESSAGE(status.ok(), "rank " << r << ": " << status.to_string());
    else
      CHECK_MESSAGE(!status.ok(), "the victim ended well");
  }
}

// `otherwise`: the number of trials where the environment does not set it.
template <class Check>
void run_trials(int otherwise, Check check) {
  const int trials = from_environment("LOCKSTEP_CHAOS_TRIALS", otherwise),
            first = from_environment("LOCKSTEP_CHAOS_SEED", 1);
  for (int seed = first; seed < first + trials; ++seed) {
    const Trial trial(seed);
    CAPTURE(seed);
    CAPTURE(trial.size);
    CAPTURE(trial.victim);
    CAPTURE(trial.moment);
    CAPTURE(static_cast<int>(trial.fault));
    const auto [descriptors, threads] = resources();
    check(trial);
    // A joined thread may still be listed in /proc for a moment.
    const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (resources().second > threads && std::chrono::steady_clock::now() < patience) std::this_thread::yield();
    const auto [descriptors_left, threads_left] = resources();
    CHECK(descriptors_left == descriptors);
    CHECK(threads_left == threads);
  }
}
