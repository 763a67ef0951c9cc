// The pipeline of the ranks along pp: its schedule, and what it needs of the command line.
#pragma once

#include <optional>

#include <lockstep/lockstep.h>

#include "support/options.h"

namespace samples {

// Whether the mesh has an axis pp, also of one rank. Then the modules of the chain have gradient sums of their own for
// a parameter that they share.
bool has_stages(const Options& options, int ranks);
// The schedule of the ranks along pp. That of "model_parallel" lets a micro-batch pass all stages, forward and back,
// before the next one starts. Null without an axis pp. Call check_pipeline first.
std::optional<lockstep::parallel::ScheduleTable> schedule_of(const Options& options, int ranks);
// Throws lockstep::InvalidArgument, naming the flags, for a pipeline that the schedule, the micro-batches or the layers
// cannot have. The micro-batches are those of check_split.
void check_pipeline(const Options& options, int ranks);

}  // namespace samples
