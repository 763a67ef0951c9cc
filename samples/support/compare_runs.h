// The runs of --strategy compare: each strategy trains in a folder of its own.
#pragma once

#include <string>
#include <vector>

#include "support/options.h"
#include "support/program.h"
#include "support/result.h"

namespace samples {

// The strategies to compare, in the order of the table.
std::vector<std::string> compared(const Options& options);
// The options of the run with a strategy.
Options in_mode(const Options& options, const std::string& mode);
// Trains with every strategy, those with ranks first: processes are best started before this process has threads.
// Returns the exit code of the first failure, or 0 and the results in the order of compared().
int train_all(const Options& options, Train train, std::vector<Result>& results);
// Writes the traces of all runs together, if traces were asked for.
void write_traces_of_all(const Options& options);
// The first difference of the runs of two strategies, in words. The gradients of dp with a loss outside are those of the
// whole batch's mean: without `has_gradients` they are not compared.
std::string first_difference(const std::string& a, const std::string& b, bool has_gradients);

}  // namespace samples
