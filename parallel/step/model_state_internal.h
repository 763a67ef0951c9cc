// The state of a model in any training mode, as checkpoints save and load it. Not installed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/tensor/tensor_part.h"

namespace lockstep::parallel {

// The part of a parameter or buffer that this rank has.
struct StatePart {
  std::string name;  // that of Module::state_dict, which gives a tied parameter several names
  Tensor part;       // its elements in row-major order; a load copies into it; numel 0 where this rank has no element
  Shape shape;       // of the whole tensor
  TensorPart place;  // which elements of the whole tensor these are
  bool is_saved = true;  // whether this rank saves the part: exactly one rank saves each element
};

// A model whose ranks may have parts of its state.
class ModelState {
 public:
  virtual ~ModelState() = default;
  // All ranks that save and load together. Null: this process alone.
  virtual ProcessGroup* group() const = 0;
  // One part for each entry of the model's state_dict, with the same names, shapes and dtypes on all ranks.
  virtual std::vector<StatePart> parts() const = 0;
  // The parameters that an optimizer of this model steps, in the order of the model, under the names of their parts and
  // with the parts' elements. All ranks have all of them, also without elements, and give a parameter a gradient on all
  // ranks or on none: then the optimizers' states have the same entries.
  virtual optim::NamedParameters parameters() const = 0;
  // Called on all ranks when a load has changed the parts; may communicate.
  virtual void after_load() {}
};

}  // namespace lockstep::parallel
