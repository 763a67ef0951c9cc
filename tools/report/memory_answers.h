// Answers to a reader's questions about memory, for a report.
#pragma once

#include <vector>

#include "tools/report/answers.h"

namespace report {

// The memory of the strategies that keep the whole model, and how much more or less the others need. Runs without
// traced steps are left out. Empty if no strategy keeps the whole model, or for fewer than two runs.
std::vector<Answer> memory_answers(const std::vector<TracedRun>& runs);

}  // namespace report
