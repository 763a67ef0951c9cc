/// \file
/// Checkpoints: a training run in one file, with model, optimizer, scheduler, random state and data of the caller.
#pragma once

#include <concepts>
#include <string>

#include "lockstep/nn/files/safetensors.h"
#include "lockstep/nn/files/state_dict.h"
#include "lockstep/nn/module.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/optim/schedulers.h"

namespace lockstep {

/// The parts to save or to load; null parts are left out. A load ignores other parts of the file.
///
/// With a model, the optimizer's state is saved under the names of the model's parameters ("optimizer.state.fc.weight.
/// exp_avg"), as Optimizer::state_dict describes, if the model has all of them; otherwise under their indices. A
/// load with a model finds the state by name, whatever the order and the groups of the optimizer's parameters. Files
/// with indices load into an optimizer with the same order and groups.
struct CheckpointParts {
  nn::Module* model = nullptr;            ///< parameters and buffers
  optim::Optimizer* optimizer = nullptr;  ///< options and state
  optim::Scheduler* scheduler = nullptr;  ///< its step count and base rates
  StateDict* extra = nullptr;             ///< the caller's own tensors; a load replaces them
  Metadata* metadata = nullptr;           ///< the caller's own strings; a load replaces them
};

/// Atomically writes a safetensors file, with the prefixes "model.", "optimizer.", "scheduler.", "extra.", and the
/// random state as "random.state": after a load, random numbers continue as after the save. Throws
/// IoError if the file cannot be written.
void save_checkpoint(const std::string& path, const CheckpointParts& parts);

/// Loads a file of save_checkpoint into `parts`, and restores the random state. Throws IoError for a corrupt file,
/// and InvalidArgument, naming file and key, for a part that is missing in the file or does not match. After an error,
/// nothing has changed. If `model` is the only part, any file, index or folder of load_weights (nn/files/weights.h) is
/// loaded as that function does, with its default options; a checkpoint without a random state leaves this process's
/// as it is. Files with a random state of format 1 load into `model` alone, with a warning.
void load_checkpoint(const std::string& path, const CheckpointParts& parts);

/// The objects that LibTorch's save and load take.
template <class T>
concept SavedObject =
    std::derived_from<T, nn::Module> || std::derived_from<T, optim::Optimizer> || std::same_as<T, Tensor>;

/// save(object.state_dict(), path), or of a tensor: as in LibTorch, but the file is a safetensors file.
template <SavedObject T>
void save(const T& object, const std::string& path) {
  if constexpr (std::same_as<T, Tensor>)
    save(StateDict{{"tensor", object}}, path);
  else
    save(object.state_dict(), path);
}
/// Loads what save has written into a module, an optimizer or a tensor variable. Throws as load_state_dict.
template <SavedObject T>
void load(T& object, const std::string& path) {
  if constexpr (std::same_as<T, Tensor>)
    object = load(path).at("tensor");
  else
    object.load_state_dict(load(path));
}

}  // namespace lockstep
