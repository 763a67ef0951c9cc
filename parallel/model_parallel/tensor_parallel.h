/// \file
/// Tensor parallelism: the matrices of a model are cut into slices, and each rank keeps and computes some of them. So a
/// model can be as wide as the memory of all ranks together permits.
///
///     const DeviceMesh mesh(group, {{"dp", 2}, {"tp", 4}});
///     parallelize(model, mesh["tp"], {.tensor_slices = 4, .plan = {
///         {"blocks.*.up", ColwiseParallel{}}, {"blocks.*.down", RowwiseParallel{}}}});
///     DistributedDataParallel run(model, mesh["dp"].group());
///
/// Between a column-parallel layer and a row-parallel one, an activation has this rank's columns. So a model takes sizes
/// that a slice changes from the tensor: reshape({t.size(0), t.size(1), -1, head_dim}). Everything else is computed by
/// all ranks of the axis alike, which must get the same batch. The number of slices and the plan determine the bits; the
/// number of ranks that share the slices does not. Against one slice, results differ by rounding. (Shoeybi et al.,
/// Megatron-LM, 2019)
///
/// A slice is a parameter of its own, named "up.weight[2/4]", that any training mode and optimizer takes. The module's
/// own handle (`linear.weight`) is undefined afterwards. parallel::save_checkpoint writes whole tensors under plain names:
/// one file for every number of ranks and slices, also for a model that is not cut. Inside `run.gathered(body)` the model
/// has whole parameters on every rank, and computes as if it were not cut.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/nn/module.h"
#include "lockstep/parallel/comm/device_mesh.h"
#include "lockstep/parallel/model_parallel/styles.h"

namespace lockstep::parallel {

/// Options of parallelize.
struct TensorParallelOptions {
  int tensor_slices = 0;           ///< T, a multiple of the ranks by a power of two; 0: as many as ranks of the axis
  bool sequence_parallel = false;  ///< outside of the regions each rank has a part of the sequence, dimension -2
  ParallelPlan plan = {};          ///< which modules are cut, and how; the others are whole on every rank
};

/// What parallelize has done.
struct TensorPlan {
  /// A layer that is cut.
  struct Layer {
    std::string path;                   ///< "blocks.0.up"
    std::string style;                  ///< "ColwiseParallel"
    std::int64_t columns = 0;           ///< of the whole matrix, in the cut dimension
    std::int64_t parts = 1;             ///< of the columns, each of which is cut by itself
    std::int64_t first = 0;             ///< this rank's first slice
    std::int64_t summed_outputs = 0;    ///< elements of a position that the ranks sum in forward
    std::int64_t gathered_outputs = 0;  ///< elements of a position that the ranks gather in forward
    std::int64_t summed_inputs = 0;     ///< the same in backward, summed; one of the layers with the same input has it
  };
  /// With sequence parallelism: numbers of the parameters whose gradients the ranks sum in each micro-batch.
  std::int64_t summed_parameters = 0;
  std::vector<Layer> layers = {};    ///< in the order of the model
  int slices = 1;                    ///< T
  int ranks = 1;                     ///< of the axis
  std::int64_t parameter_bytes = 0;  ///< of this rank: its slices, and the parameters that are not cut
  std::int64_t whole_bytes = 0;      ///< of all parameters, not cut
  /// Bytes that a rank sends in forward and backward of a micro-batch of so many positions (batch * time) in f32, if
  /// the column-parallel layers of a module get the same input.
  std::int64_t bytes_per_micro_batch(std::int64_t positions) const;
  std::string to_string() const;  ///< a table
};

/// Cuts the modules that the plan names, once and for all: takes the parameters and buffers of rank 0 of the axis, keeps
/// this rank's slices, and frees the rest. Deferred parameters that are cut get this rank's values alone. Call it before
/// an optimizer or a training mode is constructed. Collective along the axis. Modules of one model may be cut by several
/// calls with the same axis. Modules that are added later, or are outside of `module`, get the values of rank 0 when a
/// training mode is constructed. Throws InvalidArgument, before anything is changed, for a plan that does not fit the
/// model; CommError if ranks have different options or models, or different seeds of deferred parameters.
TensorPlan parallelize(nn::Module& module, const DeviceMesh& axis, const TensorParallelOptions& options);

}  // namespace lockstep::parallel
