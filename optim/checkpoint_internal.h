// The entries of a checkpoint, for one process and for the ranks of a group. Not installed.
#pragma once

#include <string>

#include "lockstep/nn/files/weights_internal.h"
#include "lockstep/optim/checkpoint.h"

namespace lockstep {

// A model's state_dict, or one rank's parts of it, and the parameters that its optimizer steps.
struct CheckpointedModel {
  StateDict state;
  optim::NamedParameters parameters;
  optim::GroupsOfParameters elsewhere = {};  // of a load: parameters that optimizers of other ranks step
};

// The entries that save_checkpoint writes. Their tensors share memory with those of the parts. `model` is what
// parts.model stands for, or null.
StateDict checkpoint_entries(const CheckpointedModel* model, const CheckpointParts& parts);

// Metadata of a checkpoint: the caller's, and the version of the format.
Metadata checkpoint_metadata(const Metadata* metadata);
// Whether save_checkpoint has written the files. Otherwise they can only be loaded into a model, as load_weights does.
bool is_checkpoint(const nn::WeightFiles& files);
// The caller's metadata; none for several files.
Metadata metadata_of(const nn::WeightFiles& files);
// Throws InvalidArgument if the files are not a checkpoint of this version.
void check_checkpoint_format(const nn::WeightFiles& files);

// Checks and copies the entries of a checkpoint. Calling the result loads them into the parts and restores the random
// state; it cannot fail. The entries of the model are the parts in `model`, and are not copied. Throws InvalidArgument.
Callback<void()> prepare_checkpoint_load(const StateDict& entries, const CheckpointedModel* model,
                                         const CheckpointParts& parts);

}  // namespace lockstep
