// Answers to the questions of memory that a reader has of a report.
#pragma once

#include <vector>

#include "tools/report/answers.h"

namespace report {

// The memory of the strategies that keep all of the model, and that of the others against it. Runs without traced steps
// are left out.
std::vector<Answer> memory_answers(const std::vector<TracedRun>& runs);

}  // namespace report
