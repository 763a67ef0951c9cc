// Whether a model's forward does what its chain says. Not installed.
#pragma once

#include <vector>

#include "lockstep/parallel/model_parallel/styles_internal.h"

namespace lockstep::parallel {

// Calls the forward of `module` with `inputs`, while the modules of its chain do not run but return empty tensors. Throws
// InvalidArgument, naming `op`, unless it only passes its inputs to the first module and each result to the next module,
// and returns that of the last one: stages run the modules, and anything else would be lost. No thread may run the module.
void check_chain_forward(const char* op, nn::Module& module, const std::vector<ChainModule>& chain,
                         const std::vector<Tensor>& inputs);

}  // namespace lockstep::parallel
