// Checks of the patterns that name modules for tensor and pipeline parallelism. Not installed.
#pragma once

#include <string>
#include <vector>

#include "lockstep/nn/module.h"
#include "lockstep/parallel/model_parallel/styles.h"

namespace lockstep::parallel {

// Throws InvalidArgument, naming `op`, for a pattern that names no module, a style for another type of module, and two
// styles for one module.
void check_plan(const char* op, nn::Module& module, const ParallelPlan& plan);

// Throws InvalidArgument, naming `op`, for a pattern that names no module, a module that is named twice, also by a module
// above it, and one with parameters that is in none of the named ones.
void check_chain(const char* op, nn::Module& module, const std::vector<std::string>& chain);

}  // namespace lockstep::parallel
