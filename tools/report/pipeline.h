// Pipelines in a run's traces: the schedule that was run, what its actions took, and what the simulator predicts from that.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/schedule/schedule.h"
#include "tools/report/run.h"

namespace report {

// A step of a pipeline on one of its ranks. Times are nanoseconds.
struct PipelineRankStep {
  std::size_t trace = 0;                                         // the position of the rank's trace in Run::traces
  std::vector<lockstep::TraceEvent> events = {};                 // TraceKind::kAction, in order
  std::vector<lockstep::parallel::ScheduleAction> actions = {};  // of each event
};

// A step of a pipeline on all its ranks.
struct PipelineStepTimes {
  std::vector<PipelineRankStep> ranks = {};  // by rank of the pipeline
  // From the first to the last action that computes.
  std::int64_t begin = 0, end = 0;
  // Share of the step in which a rank does not compute.
  double idle(std::size_t rank) const;
  double idle() const;  // mean over all ranks
};

// Costs are medians over all steps, micro-batches and replicas of a stage, in nanoseconds.
struct PipelineProfile {
  lockstep::parallel::ScheduleTable table;  // that was run, without messages
  std::vector<lockstep::parallel::StageCosts> stages = {};
  bool is_split = false;  // I and W were measured; false: only B, of which each is a half
  // The latency: from the begin of a send for which the receiver waits to the end of the receive.
  lockstep::parallel::MessageTime link = {};
  std::vector<PipelineStepTimes> steps = {};  // oldest first; with replicas one for each of them

  const PipelineStepTimes& median_step() const;  // that of median length

  // Times for a table with `count` stages: stages of the trace cut into equal parts, or put together. Throws
  // InvalidArgument if neither number is a multiple of the other.
  std::vector<lockstep::parallel::StageCosts> stages_for(int count) const;
};

// The pipeline in these traces; empty if there is none, or no step of it is complete. Evaluations do not count. Throws
// IoError for an action with a name that a schedule cannot have.
std::optional<PipelineProfile> pipeline_profile(const std::vector<lockstep::Trace>& traces);

}  // namespace report
