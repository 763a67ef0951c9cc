// Converts a run's events to lanes: one lane per device or rank, with its events and times in a step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/report/run.h"

namespace report {

// How the time of a lane's step is divided, in nanoseconds.
struct Shares {
  std::int64_t compute = 0;
  std::int64_t communication = 0;  // exposed communication: not overlapped with computation
  std::int64_t waiting = 0;        // waiting for a rank or replica
  std::int64_t other = 0;          // loading data, bookkeeping

  std::int64_t all() const { return compute + communication + waiting + other; }
  Shares& operator+=(const Shares& more);
};

// An event of a lane. Events of the same depth do not overlap. Collectives may overlap any event: depth -1.
struct LaneEvent {
  lockstep::TraceEvent event = {};
  int depth = 0;
  // The time at which, in a wait, the last rank launched the collective, or the other rank its part of the message.
  std::int64_t launched = 0;
};

struct Lane {
  std::string name = {};    // "cpu:1", "rank 0"
  bool is_replica = false;  // a replica's thread, which waits outside of `at_work`
  std::vector<LaneEvent> events = {};
  std::vector<lockstep::TraceEvent> at_work = {};  // when the replica runs
  std::vector<lockstep::TraceEvent> memory = {};   // of the process; empty for replicas
  std::vector<lockstep::TraceEvent> actions = {};  // of a pipeline's schedule
  Shares shares = {};
};

// The last rank to launch a collective.
struct Arrival {
  std::string name = {};
  int group = 0;
  std::int64_t id = 0;
  int last = 0;
  std::int64_t at = 0;      // when it launched
  std::int64_t late = 0;    // ns after the first rank
  bool is_certain = false;  // the clocks' error is smaller than `late`
};

struct StepView {
  std::int64_t number = 0;
  std::int64_t begin = 0, end = 0;  // from the first rank's begin to the last rank's end
  std::vector<Lane> lanes = {};
  std::vector<Arrival> arrivals = {};
  lockstep::parallel::CommunicationOverlap overlap = {};  // the sum over all ranks
};

void add(lockstep::parallel::CommunicationOverlap& sum, const lockstep::parallel::CommunicationOverlap& more);

// At most the last `count` steps that are complete in all traces, oldest first. Steps are those that the program marked
// (TraceKind::kStep). Without marks a step lasts from the end of one optimizer step to the end of the next one that
// follows a backward, and without those the trace is one step.
std::vector<StepView> last_steps(const Run& run, std::size_t count);

}  // namespace report
