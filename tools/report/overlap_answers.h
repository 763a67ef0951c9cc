// The answer of the summary about what overlaps.
#pragma once

#include <optional>

#include "tools/report/answers.h"
#include "tools/report/costs.h"

namespace report {

// Null where it has no answer: one device, no communication, or a pipeline, because the end of a message is not traced.
std::optional<Answer> overlap_answer(const TracedRun& traced, const StepCosts& costs);

}  // namespace report
