/// \file
/// The traces of all ranks on one clock.
#pragma once

#include <vector>

#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/tensor/trace.h"

namespace lockstep::parallel {

/// Brings the ranks' traces to rank 0, which gets them in the order of ranks, their times as its own clock has them; the
/// others get none. All ranks call it, after stop_trace. Each rank's clock is compared with rank 0's by messages there and
/// back, of which the fastest counts: the error is half its time at most (Trace::clock_error). What it sends is booked under
/// Phase::kOther. Throws CommError.
std::vector<Trace> gather_traces(ProcessGroup& group, const Trace& trace);

}  // namespace lockstep::parallel
