// The norm of gradients that are distributed over the ranks in pieces.
#pragma once

#include <vector>

#include "lockstep/parallel/sharded/unit_gradients_internal.h"

namespace lockstep::parallel {

// This rank's piece of a trained parameter.
struct TrainedPiece {
  nn::Parameter parameter;  // what the optimizer steps
  std::size_t flat;         // position in UnitGradients::flats()
  std::int64_t at;          // its first element in the shard
};

// Scales the gradients of the pieces as nn::clip_grad_norm_ scales whole gradients. Returns the norm.
double clip_pieces(ProcessGroup& group, const std::vector<TrainedPiece>& pieces, const UnitGradients& gradients,
                   double max_norm);

}  // namespace lockstep::parallel
