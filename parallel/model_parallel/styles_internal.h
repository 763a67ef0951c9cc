// Finds and checks the modules that the patterns of tensor and pipeline parallelism name. Not installed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/nn/module.h"
#include "lockstep/parallel/model_parallel/styles.h"

namespace lockstep::parallel {

// A module that a pattern of the plan names.
struct StyledModule {
  std::string path;
  nn::Module* module;
  nn::Module* parent;
  ParallelStyle style;
};
const char* name_of(const ParallelStyle& style);  // "ColwiseParallel"
// Whether `path` is the path `above` or the path of a module below it.
bool is_in(const std::string& path, const std::string& above);
std::string choice_of(const std::vector<std::int64_t>& numbers);  // "1, 2 or 4"

// The modules that the plan names, in the order of the model. Throws InvalidArgument, naming `op`, for a pattern that
// names no module, a style for another type of module, and two styles for one module.
std::vector<StyledModule> styled_modules(const char* op, nn::Module& module, const ParallelPlan& plan);

// A module of a chain. The input of each module is the result of the module before it.
struct ChainModule {
  std::string path;
  nn::Module* module;
};
// The modules that the patterns name, in the order of the patterns; {}: the children of a Sequential. Throws
// InvalidArgument, naming `op`, if a pattern names no module, if a module is named twice or is below another named one,
// or if parameters or buffers are in no named module.
std::vector<ChainModule> chain_of(const char* op, nn::Module& module, const std::vector<std::string>& patterns);

}  // namespace lockstep::parallel
