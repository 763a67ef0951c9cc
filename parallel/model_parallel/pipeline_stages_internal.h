// Cuts a model into the stages of a pipeline. Not installed.
#pragma once

#include <memory>

#include "lockstep/parallel/model_parallel/pipeline.h"
#include "lockstep/parallel/model_parallel/pipeline_runner_internal.h"

namespace lockstep::parallel {

// Throws InvalidArgument for options that do not fit the module or this number of ranks along pp.
void check_stages(const char* op, nn::Module& module, int ranks, const PipelineOptions& options);
// Whether modules of the chain share a parameter. Then the chain determines the bits.
bool shares_parameters(const std::vector<ChainModule>& chain);
// Gives `module` a PipelineRunner, as Pipeline's constructor describes. `op` is for errors. Collective along the axis.
std::shared_ptr<const PipelineRunner> cut_into_stages(const char* op, nn::Module& module, const DeviceMesh& axis,
                                                      const PipelineOptions& options);
PipelinePlan plan_of(const PipelineRunner& pipeline);

}  // namespace lockstep::parallel
