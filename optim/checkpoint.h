/// \file
/// Checkpoints: a training run in one file, with model, optimizer, scheduler, random streams and data of the caller.
#pragma once

#include <string>

#include "lockstep/nn/module.h"
#include "lockstep/nn/serialize.h"
#include "lockstep/nn/state_dict.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/optim/schedulers.h"

namespace lockstep {

/// The parts to save or to load; null parts are left out. A load ignores other parts of the file.
struct CheckpointParts {
  nn::Module* model = nullptr;            ///< parameters and buffers
  optim::Optimizer* optimizer = nullptr;  ///< options and state
  optim::Scheduler* scheduler = nullptr;  ///< its step count and base rates
  StateDict* extra = nullptr;             ///< the caller's own tensors; a load replaces them
  Metadata* metadata = nullptr;           ///< the caller's own strings; a load replaces them
};

/// Atomically writes a safetensors file, with the prefixes "model.", "optimizer.", "scheduler.", "extra.", and the
/// state of the random streams as "random.state": after a load, random numbers continue as after the save. Throws
/// IoError if the file cannot be written.
void save_checkpoint(const std::string& path, const CheckpointParts& parts);

/// Loads a file of save_checkpoint into `parts`, and restores the random streams. Throws IoError for a corrupt file,
/// and InvalidArgument, naming file and key, for a part that is missing in the file or does not match. After an error,
/// nothing has changed.
void load_checkpoint(const std::string& path, const CheckpointParts& parts);

}  // namespace lockstep
