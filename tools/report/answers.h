// Answers to the questions that a reader has of a report: what is faster and why, what overlaps, who waits, what memory
// and bytes a strategy takes. Every number follows from the traces.
#pragma once

#include <string>
#include <vector>

#include "tools/report/costs.h"

namespace report {

struct Answer {
  std::string question = {};
  std::string text = {};
};

// A question without an answer in these traces is left out. Times are those of each run's median step.
std::vector<Answer> answers(const std::vector<TracedRun>& runs);

}  // namespace report
