// The mesh of the strategies "context", "tensor", "pipeline", "model_parallel" and "parallel".
#pragma once

#include <string>
#include <vector>

#include <lockstep/lockstep.h>

#include "support/options.h"

namespace samples {

// The axes of --mesh; without it, all ranks along cp, tp or pp for the strategies that are named after these axes. For
// another strategy: all ranks along dp.
std::vector<lockstep::parallel::MeshAxis> mesh_of(const Options& options, int ranks);
// The number of ranks along the axis; 1 without it.
int ranks_along(const std::vector<lockstep::parallel::MeshAxis>& mesh, const std::string& axis);
// The coordinate of a rank along an axis: ranks are numbered in row-major order. 0 without the axis.
int coordinate(const std::vector<lockstep::parallel::MeshAxis>& mesh, const std::string& axis, int rank);
// The number of ranks, or groups of ranks, that divide the micro-batches of a step.
int data_ranks(const Options& options, int ranks);
// The number of slices of the model's matrices: --tensor-slices; without it, the ranks along tp.
int tensor_slices(const Options& options, int ranks);
lockstep::parallel::ContextAttention attention_of(const Options& options);

}  // namespace samples
