/// \file
/// Checkpoints of a model in any mode of training: one file, whatever the mode and the number of ranks.
///
///     parallel::save_checkpoint("run.safetensors", {.model = &run, .optimizer = &optimizer});
///
/// The file is the one that lockstep::save_checkpoint writes in one process with the same state, byte for byte: whole
/// tensors under PyTorch's names. It can be loaded in any mode with any number of ranks, also by
/// lockstep::load_checkpoint and `load`.
#pragma once

#include <memory>
#include <string>

#include "lockstep/nn/serialize.h"
#include "lockstep/nn/state_dict.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/optim/schedulers.h"

namespace lockstep::parallel {

class DataParallel;
class DistributedDataParallel;
class GradientAccumulation;
class ModelState;
class ShardedDataParallel;

/// The model of a checkpoint: a pointer to any mode of training, which must stay valid during the call.
class CheckpointModel {
 public:
  CheckpointModel() = default;
  CheckpointModel(GradientAccumulation* run);     // NOLINT: implicit, for {.model = &run}
  CheckpointModel(DataParallel* run);             // NOLINT
  CheckpointModel(DistributedDataParallel* run);  // NOLINT
  CheckpointModel(ShardedDataParallel* run);      // NOLINT
  CheckpointModel(std::shared_ptr<ModelState> state) : state_(std::move(state)) {}  // NOLINT: not for users

  ModelState* state() const { return state_.get(); }  ///< not for users

 private:
  std::shared_ptr<ModelState> state_;
};

/// The parts to save or to load. `model` is required; null parts are left out. A load ignores other parts of the file.
struct CheckpointParts {
  CheckpointModel model = {};             ///< parameters and buffers
  optim::Optimizer* optimizer = nullptr;  ///< options and state
  optim::Scheduler* scheduler = nullptr;  ///< its step count and base rates
  StateDict* extra = nullptr;             ///< the caller's own tensors, those of rank 0; a load replaces them
  Metadata* metadata = nullptr;           ///< the caller's own strings, equal on all ranks; a load replaces them
};

/// Atomically writes a checkpoint. All ranks of the model's group must call this. Ranks write their parts of a sharded
/// model; everything that all ranks have is written by rank 0. First the ranks' random states are merged
/// (share_random_state). The ranks of a sharded model must reach the file under the same absolute path.
///
/// An error on one rank is an error on all: the others' text begins with the rank ("rank 2: "). Then the old file is
/// unchanged. Throws InvalidArgument if the ranks' parts differ, IoError if the file cannot be written, CommError if a
/// rank is lost; a lost rank leaves the old or the new file, complete.
void save_checkpoint(const std::string& path, const CheckpointParts& parts);

/// Loads a checkpoint, of this function or of lockstep::save_checkpoint, into `parts` on all ranks and restores the
/// random state. All ranks of the model's group must call this, with a path to the same file. A rank reads its parts of a sharded model alone; rank 0
/// also verifies the checksum. Throws IoError for a corrupt file or if the ranks read different files, and
/// InvalidArgument, naming file and key, for a part that is missing in the file or does not match. After an error, which
/// all ranks throw as in save_checkpoint, nothing has changed on any rank.
void load_checkpoint(const std::string& path, const CheckpointParts& parts);

}  // namespace lockstep::parallel
