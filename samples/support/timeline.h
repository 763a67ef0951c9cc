// What a traced run leaves: its events, its traffic books and its losses. Files for viewers are made of these.
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
  std::int64_t steps = 0;                    // that the books count
  // Of all processes. Ends of links: ranks, or the devices of DataParallel.
  std::vector<lockstep::parallel::LinkTraffic> at_start = {}, in_steps = {};
  std::vector<EpochLoss> losses = {};
};

// Whether a run with these options is traced.
bool is_traced(const Options& options);
// Writes what the options ask for: Chrome's trace of all modes, the report, and on the terminal a step in words; or instead
// of these the timeline itself. Throws lockstep::IoError.
void write_timelines(const Options& options, const std::vector<Timeline>& timelines);
// Lines that say where they are.
void print_written(const Options& options);
// Throws lockstep::IoError.
Timeline read_timeline(const std::string& path);
// The losses in a run's metrics.jsonl.
std::vector<EpochLoss> read_losses(const std::string& path);

}  // namespace samples
