// The modules that the patterns of tensor and pipeline parallelism name, and checks of them. Not installed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/nn/module.h"
#include "lockstep/parallel/model_parallel/styles.h"

namespace lockstep::parallel {

// A module of the plan.
struct StyledModule {
  std::string path;
  nn::Module* module;
  nn::Module* parent;
  ParallelStyle style;
};
const char* name_of(const ParallelStyle& style);  // "ColwiseParallel"
// Whether `path` is that of the module `above` or of one below it.
bool is_in(const std::string& path, const std::string& above);
std::string choice_of(const std::vector<std::int64_t>& numbers);  // "1, 2 or 4"

// The modules that the plan names, in the order of the model. Throws InvalidArgument, naming `op`, for a pattern that
// names no module, a style for another type of module, and two styles for one module.
std::vector<StyledModule> styled_modules(const char* op, nn::Module& module, const ParallelPlan& plan);

// A module that gets the result of the one before.
struct ChainModule {
  std::string path;
  nn::Module* module;
};
// The modules that the patterns name, in their order; {}: the children of a Sequential. Throws InvalidArgument, naming
// `op`, for a pattern that names no module, a module that is named twice, also by a module above it, and one with
// parameters or buffers that is in none of the named ones.
std::vector<ChainModule> chain_of(const char* op, nn::Module& module, const std::vector<std::string>& patterns);

}  // namespace lockstep::parallel
