// Series of the trials of kill_trials.h. LOCKSTEP_KILL_TRIALS sets the number of random moments, LOCKSTEP_KILL_STRIDE
// and LOCKSTEP_STOP_STRIDE the distance between points (1: all points, with every kind of store), LOCKSTEP_CHAOS_SEED
// the first seed. With LOCKSTEP_KILL_QUIET, which promises an idle machine, a late error is a failure.
// scripts/chaos.sh sets them.
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

// Takes every rank as the victim, at every `stride`-th point.
inline void sweep_points(KillTrial trial, int stride) {
  constexpr int kSlowUs = 3000;
  KillTally tally;
  for (trial.victim = 0; trial.victim < trial.size; ++trial.victim) {
    KillTally whole;
    trial.point = 0;
    trial.slow_us = 0;
    run_kill_trial(trial, whole);  // without a victim
    REQUIRE(whole.job_points > 0);
    for (trial.point = 1 + trial.victim % stride; trial.point <= whole.job_points; trial.point += stride) {
      trial.unwinds = trial.point % 2 == 0;
      trial.slow_us = trial.point % 4 < 2 ? kSlowUs : 0;
      run_kill_trial(trial, tally);
    }
  }
  check_tally(tally, trial.backend + " at " + trial.method + (trial.stops ? ", stopped" : ", killed"));
}

inline void sweep_kill_points(const std::string& backend, int otherwise) {
  const int stride = from_environment("LOCKSTEP_KILL_STRIDE", otherwise);
  sweep_points({.backend = backend}, stride);
  if (stride > 1) return;
  for (const char* method : {"tcp", "hosts", "file"}) sweep_points({.backend = backend, .method = method}, stride);
}

// Each trial with a stopped rank takes the whole timeout, so the default stride is large.
inline void sweep_stop_points(const std::string& backend, int otherwise) {
  const int stride = from_environment("LOCKSTEP_STOP_STRIDE", otherwise);
  sweep_points({.backend = backend, .stops = true, .timeout = std::chrono::milliseconds(1500)}, stride);
}

// A seed picks the size, the victim, the moment, the store and how the survivors end.
inline void run_random_kills(const std::string& backend, int otherwise) {
  const int trials = from_environment("LOCKSTEP_KILL_TRIALS", otherwise),
            first = from_environment("LOCKSTEP_CHAOS_SEED", 1);
  KillTally tally, whole;
  for (int i = 0; i < 3; ++i) run_kill_trial({.backend = backend}, whole);  // without a victim
  for (int seed = first; seed < first + trials; ++seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    constexpr const char* kMethods[] = {"env", "tcp", "hosts", "file"};
    KillTrial trial{.backend = backend, .method = kMethods[random() % 4]};
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
