// Slices that share a parameter: for fewer heads of keys and values than slices (ColwiseParallel::repeat). Not installed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/nn/parameter.h"
#include "lockstep/parallel/model_parallel/styles.h"
#include "lockstep/parallel/model_parallel/tensor_slices_internal.h"

namespace lockstep::parallel {

// The tensor of each of this rank's slices, of which `repeat` one after another share a parameter. `own` are this rank's
// distinct parameters. The gradient of each is the sum over the slices that share it, on all ranks, in the order of
// sum_over_slices: in it, a slice with another parameter counts as -0, which changes no sum. So ranks that share a
// parameter have the same gradient, for any number of ranks.
std::vector<Tensor> repeated_slices(const std::shared_ptr<const TensorSlices>& slices,
                                    const std::vector<nn::Parameter>& own, std::int64_t repeat);

// Throws InvalidArgument, naming `op` and the layer, unless slices can share the outputs of a layer as its style says.
void check_repeat(const char* op, const std::string& path, const ColwiseParallel& style, std::int64_t outputs,
                  int slices);
// The end of an error about outputs of which a slice would have less than a head: which .repeat to use, if there is one.
std::string repeat_hint(const ColwiseParallel& style, std::int64_t outputs, int slices);

}  // namespace lockstep::parallel
