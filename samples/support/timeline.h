// The data of a traced run: events, traffic counters and losses. The output files are made from it.
#pragma once

#include <lockstep/lockstep.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/options.h"

namespace samples {

// The loss at the end of each epoch.
struct EpochLoss {
  std::int64_t epoch = 0;
  double train = 0, test = 0;
};

struct Timeline {
  std::string mode = {};
  std::vector<lockstep::Trace> traces = {};  // one for each process
  std::int64_t steps = 0;                    // number of steps in the traffic counters
  // Traffic of all processes. Links connect ranks, or the devices of DataParallel.
  std::vector<lockstep::parallel::LinkTraffic> at_start = {}, in_steps = {};
  std::vector<EpochLoss> losses = {};
};

// Whether a run with these options is traced.
bool is_traced(const Options& options);
// Writes the outputs selected by the options: Chrome's trace of all modes, the report, and on the terminal the
// explanation of a step; or only the timeline. Throws lockstep::IoError.
void write_timelines(const Options& options, const std::vector<Timeline>& timelines);
// Prints the paths of the files written.
void print_written(const Options& options);
// Throws lockstep::IoError.
Timeline read_timeline(const std::string& path);
// The losses in a run's metrics.jsonl.
std::vector<EpochLoss> read_losses(const std::string& path);

}  // namespace samples
