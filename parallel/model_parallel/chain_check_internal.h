// Whether a model's forward does what its chain says. Not installed.
#pragma once

#include <vector>

#include "lockstep/nn/module_runner_internal.h"
#include "lockstep/parallel/model_parallel/styles_internal.h"

namespace lockstep::parallel {

// Calls `forward`, the model's own, while the modules of the chain do not run but return empty tensors. Throws
// InvalidArgument, naming `op`, unless it only passes its inputs to the first module and each result to the next module,
// and returns that of the last one: stages run the modules, and anything else would be lost.
void check_chain_forward(const char* op, const std::vector<ChainModule>& chain, const std::vector<Tensor>& inputs,
                         nn::ModuleRunner::Forward forward);

}  // namespace lockstep::parallel
