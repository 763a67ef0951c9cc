// The files that are made from the trace of a run: Chrome's, the report, and the explanation of a step.
#pragma once

#include <lockstep/lockstep.h>

#include <string>
#include <vector>

#include "support/options.h"
#include "tools/report/run.h"

namespace samples {

// Whether a run with these options is traced.
bool is_traced(const Options& options);
// Writes the outputs selected by the options: Chrome's trace, the report, and on the terminal the explanation of a
// step; or only the file of --timeline. Throws lockstep::IoError.
void write_traces(const Options& options, const std::vector<lockstep::Trace>& traces);
// Prints the paths of the files written.
void print_written(const Options& options);
// The losses in a run's metrics.jsonl.
std::vector<report::EpochLoss> read_losses(const std::string& path);

}  // namespace samples
