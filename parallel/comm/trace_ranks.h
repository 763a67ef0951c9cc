/// \file
/// Gathers the traces of all ranks, with times converted to one clock.
#pragma once

#include <vector>

#include "lockstep/base/trace.h"
#include "lockstep/parallel/comm/process_group.h"

namespace lockstep::parallel {

/// Returns on rank 0 the traces of all ranks, ordered by rank, with times converted to rank 0's clock; on the other
/// ranks an empty list. All ranks must call this, after stop_trace. Each rank compares its clock with rank 0's by
/// round trips and uses the fastest: the error is at most half of its duration (Trace::clock_error). The traffic is
/// counted under Phase::kOther. Throws CommError.
std::vector<Trace> gather_traces(ProcessGroup& group, const Trace& trace);

}  // namespace lockstep::parallel
