// Why a run's steps take as long as they do.
#pragma once

#include <string>
#include <vector>

#include "tools/report/lanes.h"

namespace report {

// What a lane waits for.
struct Cause {
  std::string text = {};    // "cpu:0 waits for cpu:1's outputs"
  std::int64_t ns = 0;      // the sum over all steps
  bool is_waiting = false;  // for a rank or a replica; false: for bytes on their way
};

// The causes of waiting and of exposed communication in these steps, longest first.
std::vector<Cause> causes_of(const Run& run, const std::vector<StepView>& steps);

// The shares of the time, what limits a step, and its cause.
std::string verdict(const Run& run, const std::vector<StepView>& steps);

std::string time_text(std::int64_t ns);  // "1.5 us"

}  // namespace report
