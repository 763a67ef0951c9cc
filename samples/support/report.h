// The report: one HTML file with the last steps of a run, or of all modes side by side. It needs no network.
#pragma once

#include <vector>

#include "support/timeline.h"

namespace samples {

// Writes options.report. Throws lockstep::IoError.
void write_report(const Options& options, const std::vector<Timeline>& timelines);

}  // namespace samples
