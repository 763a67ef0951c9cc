// A training run in one file: model, optimizer, scheduler, random numbers, and what the trainer adds.
#pragma once

#include <string>

#include "lockstep/nn/module.h"
#include "lockstep/nn/serialize.h"
#include "lockstep/nn/state_dict.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/optim/schedulers.h"

namespace lockstep {

// What to save or to load; null stands for nothing. A load ignores what the file has besides.
struct CheckpointParts {
  nn::Module* model = nullptr;            // parameters and buffers
  optim::Optimizer* optimizer = nullptr;  // options and state
  optim::Scheduler* scheduler = nullptr;  // its step count and base rates
  StateDict* extra = nullptr;             // the trainer's own tensors; a load replaces them
  Metadata* metadata = nullptr;           // the trainer's own texts; a load replaces them
};

// Writes a safetensors file, all or nothing, with the prefixes "model.", "optimizer.", "scheduler.", "extra.", and the
// state of the random streams as "random.state": a program that loads it draws the numbers this one would have drawn.
// Throws IoError where the file cannot be written.
void save_checkpoint(const std::string& path, const CheckpointParts& parts);

// Loads what save_checkpoint wrote into `parts`, and restores the random streams. Throws IoError for a broken file and
// InvalidArgument, with file and key, for a part that the file lacks or that does not fit; nothing is changed then.
void load_checkpoint(const std::string& path, const CheckpointParts& parts);

}  // namespace lockstep
