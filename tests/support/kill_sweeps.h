// Trials of kill_trials.h in a row. LOCKSTEP_KILL_TRIALS asks for more at random moments, LOCKSTEP_KILL_STRIDE and
// LOCKSTEP_STOP_STRIDE for more places (1: all of them, at every kind of store), LOCKSTEP_CHAOS_SEED for other moments.
// LOCKSTEP_KILL_QUIET says that nothing else runs here: then a late error is a failure. scripts/chaos.sh sets them.
#pragma once

#include "tests/support/chaos_trials.h"
#include "tests/support/kill_trials.h"

inline void check_tally(const KillTally& tally, const std::string& what) {
  MESSAGE(what << ": " << tally.to_string());
  for (const std::string& failure : tally.failures) FAIL_CHECK(failure);
  const bool is_quiet = from_environment("LOCKSTEP_KILL_QUIET", 0) != 0;
  for (const std::string& delay : tally.delays) {
    if (is_quiet)
      FAIL_CHECK(delay);
    else
      MESSAGE(delay);
  }
}

// Every rank as the victim, at places that are so far apart.
inline void sweep_points(KillTrial trial, int stride) {
  KillTally tally;
  for (trial.victim = 0; trial.victim < trial.size; ++trial.victim) {
    KillTally whole;
    trial.point = 0;
    run_kill_trial(trial, whole);  // nobody is killed
    REQUIRE(whole.job_points > 0);
    for (trial.point = 1 + trial.victim % stride; trial.point <= whole.job_points; trial.point += stride) {
      trial.unwinds = trial.point % 2 == 0;
      run_kill_trial(trial, tally);
    }
  }
  check_tally(tally, trial.backend + " at " + trial.method + (trial.stops ? ", stopped" : ", killed"));
}

inline void sweep_kill_points(const std::string& backend, int otherwise) {
  const int stride = from_environment("LOCKSTEP_KILL_STRIDE", otherwise);
  sweep_points({.backend = backend}, stride);
  if (stride > 1) return;
  for (const char* method : {"tcp", "file"}) sweep_points({.backend = backend, .method = method}, stride);
}

// A rank that is stopped costs the time-out: some places are enough.
inline void sweep_stop_points(const std::string& backend, int otherwise) {
  const int stride = from_environment("LOCKSTEP_STOP_STRIDE", otherwise);
  sweep_points({.backend = backend, .stops = true, .timeout = std::chrono::milliseconds(1500)}, stride);
}

// A seed picks the size, the victim, the moment, the store and the survivors' end.
inline void run_random_kills(const std::string& backend, int otherwise) {
  const int trials = from_environment("LOCKSTEP_KILL_TRIALS", otherwise),
            first = from_environment("LOCKSTEP_CHAOS_SEED", 1);
  KillTally tally, whole;
  for (int i = 0; i < 3; ++i) run_kill_trial({.backend = backend}, whole);  // nobody is killed
  for (int seed = first; seed < first + trials; ++seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    constexpr const char* kMethods[] = {"env", "tcp", "file"};
    KillTrial trial{.backend = backend, .method = kMethods[random() % 3]};
    trial.size = 3 + static_cast<int>(random() % 2);
    trial.victim = static_cast<int>(random() % static_cast<unsigned>(trial.size));
    trial.phase = static_cast<JobPhase>(1 + random() % 6);
    const std::int64_t longest = std::max<std::int64_t>(whole.phase_us[static_cast<std::size_t>(trial.phase)], 100);
    trial.delay_us = static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(longest));
    trial.unwinds = random() % 2 == 0;
    run_kill_trial(trial, tally);
  }
  check_tally(tally, backend + " at random");
}
