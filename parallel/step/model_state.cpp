#include "lockstep/parallel/step/model_state_internal.h"

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/step/shared_runner_internal.h"

namespace lockstep::parallel {

StatePart part_of(const nn::ListedTensor& listed, const Tensor& elements, const TensorPart& place, bool is_saved) {
  StatePart part{.name = listed.whole_name(),
                 .part = elements,
                 .shape = listed.tensor.shape(),
                 .place = place,
                 .is_saved = is_saved};
  if (!listed.slice) return part;
  part.shape = listed.slice->shape;
  part.place = listed.slice->part.narrow(place.numel == 0 ? 0 : place.at(0), place.numel);
  part.slice = listed.name;
  return part;
}

bool saves(const nn::ListedTensor& listed, const StateRanks& ranks) {
  return listed.slice ? !listed.slice->is_copy : ranks.saves_whole;
}

StateRanks state_ranks(nn::Module& module, const std::shared_ptr<ProcessGroup>& group) {
  StateRanks ranks{.group = group};
  const std::shared_ptr<const SharedRunner> cut = model_runner(module);
  if (!cut) return ranks;
  ranks.saves_whole = cut->group->rank() == 0;
  ranks.group = cut->group;
  if (!group || group->size() == 1) return ranks;
  const int have = cut->mesh ? cut->mesh->size() : cut->group->size(), need = cut->group->size() * group->size();
  LOCKSTEP_CHECK(
      have == need,
      "checkpoint: {} ranks share the slices of the model and {} ranks train it together, but the mesh of "
      "parallelize has {} ranks, expected {}; pass axes of one mesh: parallelize(model, mesh[\"tp\"], ...) and "
      "mesh[\"dp\"].group()",
      cut->group->size(), group->size(), have, need);
  ranks.group = cut->mesh;
  return ranks;
}

}  // namespace lockstep::parallel
