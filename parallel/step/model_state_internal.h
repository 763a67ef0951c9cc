// The state of a model in any training mode, as checkpoints save and load it. Not installed.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lockstep/nn/module_internal.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/parallel/step/stage_runner_internal.h"
#include "lockstep/tensor/tensor_part.h"

namespace lockstep::parallel {

// A part of a parameter or buffer that this rank has.
struct StatePart {
  std::string name;  // that of Module::state_dict, which gives a tied parameter several names
  Tensor part;       // its elements in row-major order; a load copies into it; numel 0 where this rank has no element
  Shape shape;       // of the whole tensor
  TensorPart place;  // which elements of the whole tensor these are
  bool is_saved = true;    // whether this rank saves the part: exactly one rank saves each element
  std::string slice = {};  // of a part of a slice: the slice's name, "up.weight[2/4]"
  bool is_copy = false;    // of a parameter that the ranks of another stage save

  const std::string& listed_name() const { return slice.empty() ? name : slice; }  // as the module lists it
};

// The ranks that save and load a model together: those of its stages, times those that share a stage's slices, times
// those of the mode.
struct StateRanks {
  std::shared_ptr<ProcessGroup> group;  // null: this process alone
  bool saves_whole = true;  // whether this rank, of those that share slices, saves tensors that are not slices
  std::shared_ptr<const StageRunner> stages = nullptr;  // if they are on several ranks
  std::set<const nn::TensorSlot*> copies =
      {};  // parameters that this rank's stages share with those of a rank that saves
};
// Whether this rank, of those that share slices and stages, saves its elements of the tensor.
bool saves(const nn::ListedTensor& listed, const StateRanks& ranks);
// The part of `listed` with these elements, `place` in row-major order. If `listed` is a slice, the result is a part of
// the whole tensor. `place` must be consecutive.
StatePart part_of(const nn::ListedTensor& listed, const Tensor& elements, const TensorPart& place, bool is_saved,
                  const StateRanks& ranks);
// `group` is that of the mode; null stands for this process alone. Throws InvalidArgument unless slices, stages and mode
// have axes of one mesh.
StateRanks state_ranks(nn::Module& module, const std::shared_ptr<ProcessGroup>& group);

// A model whose ranks may have parts of its state.
class ModelState {
 public:
  virtual ~ModelState() = default;
  // All ranks that save and load together. Null: this process alone.
  virtual ProcessGroup* group() const = 0;
  // The stages of the model, if they are on several ranks: a rank then has the parts and parameters of its own stages only.
  // Null: all ranks have all.
  virtual const StageRunner* stages() const = 0;
  // Whether this rank, of those with the same stages, saves what each of them has whole.
  virtual bool is_first() const = 0;
  // One part or, of a tensor that is cut, several for each entry of the model's state_dict, with the same names, shapes
  // and dtypes on all ranks.
  virtual std::vector<StatePart> parts() const = 0;
  // The parameters that an optimizer of this model steps, in the order of the model, under the listed names of their
  // parts and with the parts' elements. All ranks have all of them, also without elements, and give a parameter a gradient
  // on all ranks or on none: then the optimizers' states have the same entries.
  virtual optim::NamedParameters parameters() const = 0;
  // Called on all ranks when a load has changed the parts; may communicate.
  virtual void after_load() {}
};

}  // namespace lockstep::parallel
