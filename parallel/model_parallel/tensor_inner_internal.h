// Modules that run while a region of tensor parallelism is open, between the layers whose outputs are cut and the one
// whose inputs are. Not installed.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/nn/module.h"
#include "lockstep/parallel/model_parallel/styles_internal.h"
#include "lockstep/parallel/model_parallel/tensor_slices_internal.h"

namespace lockstep::parallel {

// Prepares all modules of `module` for open regions. Call it before the regions get their runners.
//
// A module that is SequenceParallel runs once for each of this rank's slices, on the slice's heads in contiguous memory.
// The gradients of its parameters are summed over all slices before they are added to those of other micro-batches, so
// the bits do not depend on the number of ranks. Each other module throws InvalidArgument in an open region if it has
// parameters, of whose gradient each rank would have a part, changes its buffers, or has layers that are cut.
void prepare_inner_modules(nn::Module& module, const std::vector<StyledModule>& styled,
                           const std::shared_ptr<const TensorSlices>& slices);

}  // namespace lockstep::parallel
