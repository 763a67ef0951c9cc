// A traced run: the traces of its processes, and the facts in the traces' notes.
#pragma once

#include <lockstep/lockstep.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace report {

// The losses of an epoch. `steps`: the mean over its steps of the loss before the update. `test`: the loss on the test
// data after the epoch. NaN: unknown.
struct EpochLoss {
  std::int64_t epoch = 0;
  double steps = 0, test = 0;
};

// Bytes by link: links connect ranks, or the devices of DataParallel.
using Links = std::vector<lockstep::parallel::LinkTraffic>;

// The traffic counters of a run, over all its processes.
struct Counters {
  std::int64_t steps = 0;
  Links at_start = {}, in_steps = {};
};

// Bytes of one rank as ShardedDataParallel::plan predicts them; -1: unknown.
struct PlannedBytes {
  std::int64_t memory = -1;                      // without activations
  std::int64_t parameters = -1, gradients = -1;  // sent in a step
};

// Bytes of the model on the rank that needs the most, or in the process. Negative: unknown.
struct ModelMemory {
  std::int64_t parameters = -1, gradients = -1, optimizer = -1;
  std::int64_t units = -1;  // buffers of a sharded model's units

  bool is_known() const { return parameters >= 0; }
  std::int64_t total() const { return parameters + gradients + optimizer + units; }
  bool operator==(const ModelMemory&) const = default;
};

struct Run {
  std::string name = {};  // heading of its column: "ddp"
  // single, accumulate, dp, ddp, zero1, ..., sharded (a plan was traced) or ranks (several processes without buckets)
  std::string mode = {};
  std::vector<lockstep::Trace> traces = {};  // one for each process
  std::string parameter_hash = {};           // empty: unknown
  std::int64_t gradient_bytes = 0;           // of all parameters; 0: unknown
  std::int64_t step_ns = 0;                  // mean time of a step in the whole run, traced or not; 0: unknown
  ModelMemory memory = {};
  bool is_counted = false;  // `counters` is set; otherwise the bytes are summed from the events
  Counters counters = {};
  std::vector<EpochLoss> losses = {};

  bool is_sharded() const { return mode == "sharded" || mode.starts_with("zero"); }
  bool has_ranks() const { return mode == "ddp" || mode == "ranks" || is_sharded(); }
};

// Notes of a trace (Trace::notes) that runs_of reads.
inline constexpr const char* kModeNote = "mode";
inline constexpr const char* kHashNote = "parameter_hash";
inline constexpr const char* kGradientsNote = "gradient_bytes";
inline constexpr const char* kStepNote = "step_ns";
std::pair<std::string, std::string> counters_note(const Counters& counters);
std::pair<std::string, std::string> memory_note(const ModelMemory& memory);
std::pair<std::string, std::string> losses_note(const std::vector<EpochLoss>& losses);

// The bytes of the last plan in a trace; -1 without a plan.
PlannedBytes planned_in(const lockstep::Trace& trace);

// Groups traces by the names of their processes: "ddp rank 0" and "ddp rank 1" are the run "ddp". A process without a
// name of its own belongs to the run `name`. Throws IoError for a note that cannot be read.
std::vector<Run> runs_of(const std::vector<lockstep::Trace>& traces, const std::string& name);

}  // namespace report
