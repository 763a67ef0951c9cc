/// \file
/// Checkpoints of a model in any training mode: one file, for every mode and number of ranks.
///
///     parallel::save_checkpoint("run.safetensors", {.model = &run, .optimizer = &optimizer});
///
/// The file equals, byte for byte, the file that lockstep::save_checkpoint writes in one process with the same state:
/// whole tensors under PyTorch's names. The file can be loaded in any mode with any number of ranks, and also by
/// lockstep::load_checkpoint and `load`. This includes models that tensor parallelism has cut: their ranks are all ranks
/// of the mesh, so the slices and the mode must have axes of one mesh.
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "lockstep/nn/files/safetensors.h"
#include "lockstep/nn/files/state_dict.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/optim/schedulers.h"
#include "lockstep/parallel/step/step.h"

namespace lockstep::parallel {

/// The model of a checkpoint: a pointer to an object of any training mode, valid during the call.
class CheckpointModel {
 public:
  CheckpointModel() = default;
  template <class Mode>
  CheckpointModel(Mode* run)  // NOLINT: implicit, for {.model = &run}
      requires std::is_base_of_v<TrainingStep<Mode>, Mode> : state_(run ? run->model_state() : nullptr) {}
  CheckpointModel(std::shared_ptr<ModelState> state) : state_(std::move(state)) {}  // NOLINT: not for users

  const std::shared_ptr<ModelState>& state() const { return state_; }  ///< not for users

 private:
  std::shared_ptr<ModelState> state_;
};

/// The parts to save or load. `model` is required; null parts are omitted. A load ignores other parts of the file.
struct CheckpointParts {
  CheckpointModel model = {};             ///< parameters and buffers
  optim::Optimizer* optimizer = nullptr;  ///< options and state
  optim::Scheduler* scheduler = nullptr;  ///< its step count and base rates
  StateDict* extra = nullptr;             ///< the caller's own tensors; rank 0's are saved, a load replaces them
  Metadata* metadata = nullptr;           ///< the caller's own strings, equal on all ranks; a load replaces them
};

/// Atomically writes a checkpoint. All ranks of the model must call this. First the ranks' random states are
/// merged (share_random_state). Each rank writes its own part of a sharded model; rank 0 writes everything that all
/// ranks have. The ranks of a sharded model must reach the file under the same absolute path.
///
/// An error on one rank is an error on all ranks; the text on the other ranks starts with that rank, as in "rank 2:".
/// The old file is then unchanged. Throws InvalidArgument if the ranks' parts differ, IoError if the file cannot be
/// written, and CommError if a rank is lost. A lost rank leaves either the old file or the complete new one.
void save_checkpoint(const std::string& path, const CheckpointParts& parts);

/// Loads a checkpoint, written by save_checkpoint of this header or by lockstep::save_checkpoint, into `parts` on all
/// ranks and restores the random state. All ranks of the model must call this, with a path to the same file.
/// Each rank reads only its own part of a sharded model; rank 0 also verifies the checksum. Throws IoError for a
/// corrupt file or if the ranks read different files, and InvalidArgument, naming file and key, for a part that is
/// missing in the file or does not match. All ranks throw these errors, as in save_checkpoint, and then nothing has
/// changed on any rank. If `model` is the only part, any file, index or folder of load_weights is loaded, too, as
/// parallel::load_weights does.
void load_checkpoint(const std::string& path, const CheckpointParts& parts);

}  // namespace lockstep::parallel
