// Why a run's steps take as long as they do.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/report/lanes.h"

namespace report {

// A reason for which a lane waits.
struct Cause {
  std::string lane = {};    // "cpu:0"
  std::string what = {};    // "cpu:1's forward"
  std::int64_t ns = 0;      // the sum over all steps
  bool is_waiting = false;  // for a rank or a replica; false: for bytes on their way
  // By how much the awaited replica's forward or backward, or rank's step, began after this lane's; null for other causes.
  std::optional<std::int64_t> later = {};

  std::string text() const { return lane + " waits for " + what; }
};

// The causes of waiting and of exposed communication in these steps, longest first.
std::vector<Cause> causes_of(const Run& run, const std::vector<StepView>& steps);

// A sentence with the shares of the time, the largest of them, and its main cause.
std::string verdict(const Run& run, const std::vector<StepView>& steps);

std::string time_text(std::int64_t ns);  // "1.5 us"
std::string bytes_text(double bytes);    // "2.14 MB"

}  // namespace report
