// The report: one HTML file with the last steps of one or several runs, side by side. It needs no network.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tools/report/costs.h"

namespace report {

inline constexpr std::size_t kShownSteps = 20;  // of each run

struct Report {
  std::string title = {};    // the program
  std::string command = {};  // the command line that made the page
  std::vector<Run> runs = {};
};

// The runs with the steps that the page shows.
std::vector<TracedRun> traced(const std::vector<Run>& runs);

std::string page_of(const Report& report);
// Writes the page. Throws lockstep::IoError.
void write_report(const std::string& path, const Report& report);

}  // namespace report
