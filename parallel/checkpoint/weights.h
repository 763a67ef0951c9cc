/// \file
/// Weights of a trained model for a model in any training mode: each rank reads the parts that it keeps.
///
///     Parallel run(model, mesh, options);  // or any other mode
///     parallel::load_weights(run, "distilgpt2/", {.rename = {{"transformer", ""}}});
#pragma once

#include <string>
#include <type_traits>

#include "lockstep/nn/files/weights.h"
#include "lockstep/parallel/checkpoint/checkpoint.h"

namespace lockstep::parallel {

/// Reads weights as nn::load_weights does, from the same files on all ranks, straight into each rank's parts: pieces of
/// a sharded model, slices, stages. Matrices with `transpose` are read whole, one at a time. All ranks of the model must
/// call this. `missing` has the names of this rank's parts. Throws on all ranks what a rank throws, with that rank; and
/// IoError if ranks read different files.
nn::LoadWeightsResult load_weights(const CheckpointModel& model, const std::string& path,
                                   const nn::LoadWeightsOptions& options = {});
/// The same for the object of the training mode.
template <class Mode>
requires std::is_base_of_v<TrainingStep<Mode>, Mode> nn::LoadWeightsResult load_weights(
    Mode& run, const std::string& path, const nn::LoadWeightsOptions& options = {}) {
  return load_weights(CheckpointModel(&run), path, options);
}

}  // namespace lockstep::parallel
