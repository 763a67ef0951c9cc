// Weights that the ranks of a group read together. Not installed.
#pragma once

#include "lockstep/nn/files/weights_internal.h"
#include "lockstep/parallel/step/model_state_internal.h"

namespace lockstep::parallel {

// Throws IoError on all ranks unless they have opened the same files, whose checksums are verified.
void check_same_files(const nn::WeightFiles& files, ProcessGroup* group);
// load_weights from such files, by the function `op`, which may take no options (null).
nn::LoadWeightsResult load_weights(const char* op, ModelState& state, const nn::WeightFiles& files,
                                   const nn::LoadWeightsOptions* options);

}  // namespace lockstep::parallel
