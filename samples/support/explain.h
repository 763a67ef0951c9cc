// One step in words: what each rank or device does, when, and why it waits.
#pragma once

#include <string>

#include "tools/report/lanes.h"

namespace samples {

// The text for one step in `mode` (single, accumulate, dp or ddp). Depends only on the arguments.
std::string explain(const std::string& mode, const report::StepView& step);

}  // namespace samples
