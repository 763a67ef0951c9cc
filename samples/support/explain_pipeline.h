// Explains in words what the ranks of a pipeline have and send: a part of --explain for a mesh with an axis pp.
#pragma once

#include <cstdint>
#include <string>

#include <lockstep/lockstep.h>

#include "support/options.h"
#include "tools/report/lanes.h"

namespace samples {

// The name of the schedule: "1f1b"; for "model_parallel", which has none: "one micro-batch at a time".
std::string schedule_name(const Options& options);
// "stage 1 of 2: blocks.1, head": what the rank with this coordinate along pp has.
std::string stages_of_rank(const Options& options, int ranks, int coordinate);
// Whether an event is a message from one stage to the next, or back.
bool is_between_stages(const lockstep::TraceEvent& event);
// The text for a step with micro-batches of `texts` texts each.
std::string stages_text(const Options& options, int ranks, std::int64_t texts, const report::StepView& step);

}  // namespace samples
