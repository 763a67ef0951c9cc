// From a trace's events to the lanes of a timeline: what each device or rank did in one step, and where its time went.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "support/timeline.h"

namespace samples {

// Nanoseconds of a lane's step.
struct Shares {
  std::int64_t compute = 0;
  std::int64_t communication = 0;  // that nothing else was done meanwhile: exposed
  std::int64_t waiting = 0;        // for a rank or replica that was not there yet
  std::int64_t other = 0;          // loading data, bookkeeping

  std::int64_t all() const { return compute + communication + waiting + other; }
  Shares& operator+=(const Shares& more);
};

// An event of a lane; those with the same depth do not overlap. Collectives overlap with everything: depth -1.
struct LaneEvent {
  lockstep::TraceEvent event = {};
  int depth = 0;
};

struct Lane {
  std::string name = {};    // "cpu:1", "rank 0"
  bool is_replica = false;  // its thread waits whenever it is not at work for a replica
  std::vector<LaneEvent> events = {};
  std::vector<lockstep::TraceEvent> at_work = {};  // of a replica
  Shares shares = {};
};

// When each rank launched a collective, and who was last.
struct Arrival {
  std::string name = {};
  int group = 0;
  std::int64_t id = 0;
  int last = 0;
  std::int64_t late = 0;    // ns after the first rank
  bool is_certain = false;  // the clocks' error is smaller than `late`
};

struct StepView {
  std::int64_t number = 0;
  std::int64_t begin = 0, end = 0;  // of all ranks
  std::vector<Lane> lanes = {};
  std::vector<Arrival> arrivals = {};
  lockstep::parallel::CommunicationOverlap overlap = {};  // the sum over all ranks
};

// The last `count` steps at most that are whole in all traces, oldest first.
std::vector<StepView> last_steps(const Timeline& timeline, std::size_t count);

}  // namespace samples
