// The time of a run's median step by cause, and the formulas of the bytes that its strategy sends.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/report/lanes.h"

namespace report {

// A traced run with its last steps.
struct TracedRun {
  Run run = {};
  std::vector<StepView> steps = {};
};

// Nanoseconds. With ranks, means over the ranks' lanes; with DataParallel, those of the first device, whose lane lasts
// as long as the step. The parts add up to the step.
struct StepCosts {
  int lanes = 0;
  std::int64_t step = 0;  // from the first lane's begin to the last lane's end
  std::int64_t model = 0, optimizer = 0, communication = 0, waiting = 0;
  std::int64_t apart = 0;  // outside of the ranks' lanes, as ranks begin or end the step at different times
  std::int64_t other = 0;
};

// The step of median length. Requires a step.
const StepView& median_step(const std::vector<StepView>& steps);
StepCosts costs_of(const Run& run, const StepView& step);

// The bytes that the device or rank with the most traffic sends and receives in a step, as a multiple of the model's
// bytes P.
struct ByteFormula {
  enum class Kind {
    kNone,  // the counters are unknown, or follow no formula
    kHub,   // 2 (n-1) P: DataParallel's first device
    kRanks  // 2 k (n-1)/n P: in each of k passes a rank sends and receives (n-1)/n P
  };
  Kind kind = Kind::kNone;
  int passes = 0;  // k

  double multiple(int devices) const;  // of P
  std::string text() const;            // "2 (n-1) P"
};

// The formula that the traffic counters of a run on `devices` follow, within 2 %.
ByteFormula formula_of(const Run& run, int devices);

}  // namespace report
