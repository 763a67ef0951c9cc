#include "lockstep/parallel/step/model_state_internal.h"

#include <memory>
#include <string>
#include <vector>

#include <fmt/ranges.h>

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/step/shared_runner_internal.h"

namespace lockstep::parallel {

StatePart part_of(const nn::ListedTensor& listed, const Tensor& elements, const TensorPart& place, bool is_saved,
                  const StateRanks& ranks) {
  StatePart part{.name = listed.whole_name(),
                 .part = elements,
                 .shape = listed.tensor.shape(),
                 .place = place,
                 .is_saved = is_saved,
                 .is_copy = ranks.copies.contains(listed.id)};
  if (!listed.slice) return part;
  part.shape = listed.slice->shape;
  part.place = listed.slice->part.narrow(place.numel == 0 ? 0 : place.at(0), place.numel);
  part.slice = listed.name;
  return part;
}

bool saves(const nn::ListedTensor& listed, const StateRanks& ranks) {
  if (ranks.copies.contains(listed.id)) return false;
  return listed.slice ? !listed.slice->is_copy : ranks.saves_whole;
}

namespace {

// The axes along which a model is saved, outermost first.
struct StateAxes {
  std::shared_ptr<ProcessGroup> group;  // of the last one with several ranks
  int ranks = 1;                        // of all axes
  std::vector<std::string> uses = {}, calls = {};

  void add(const std::shared_ptr<ProcessGroup>& axis, const char* use, const char* call) {
    if (!axis || axis->size() == 1) return;
    group = axis;
    ranks *= axis->size();
    uses.push_back(fmt::format("{} ranks {}", axis->size(), use));
    calls.emplace_back(call);
  }
};

// The slices of a parameter have one place.
std::set<const nn::TensorSlot*> copies_of(const nn::Module& module, const StageRunner& stages) {
  std::vector<StageRunner::Place> here;
  for (const StageRunner::Place place : stages.places()) {
    if (place != StageRunner::Place::kElsewhere) here.push_back(place);
  }
  std::set<const nn::TensorSlot*> copies;
  std::size_t next = 0;
  std::string last;
  for (const auto& [name, parameter] : module.named_parameters()) {
    const std::string whole = nn::ListedTensor{.name = name, .tensor = {}, .slice = parameter.slice()}.whole_name();
    if (whole != last) ++next;
    last = whole;
    if (here.at(next - 1) == StageRunner::Place::kCopy) copies.insert(parameter.id());
  }
  return copies;
}

}  // namespace

StateRanks state_ranks(nn::Module& module, const std::shared_ptr<ProcessGroup>& group) {
  StateRanks ranks{.group = group};
  const std::shared_ptr<const StageRunner> stages = stage_runner(module);
  const std::shared_ptr<const SharedRunner> cut = model_runner(module);
  StateAxes axes;
  if (stages) axes.add(stages->group, "have the stages of the model", "Pipeline(model, mesh[\"pp\"], ...)");
  if (axes.ranks > 1) {
    ranks.stages = stages;
    ranks.copies = copies_of(module, *stages);
  }
  if (cut) {
    axes.add(cut->group, "share the slices of the model", "parallelize(model, mesh[\"tp\"], ...)");
    ranks.saves_whole = cut->group->rank() == 0;
  }
  axes.add(group, "train it together", "mesh[\"dp\"].group()");
  if (axes.group) ranks.group = axes.group;
  if (axes.uses.size() < 2) return ranks;
  const SharedRunner& of_mesh = ranks.stages ? *stages : *cut;
  const int have = of_mesh.mesh ? of_mesh.mesh->size() : of_mesh.group->size();
  LOCKSTEP_CHECK(have == axes.ranks,
                 "checkpoint: {}, but the mesh of {} has {} ranks, expected {}; pass axes of one mesh: {}",
                 fmt::join(axes.uses, " and "), ranks.stages ? "Pipeline" : "parallelize", have, axes.ranks,
                 fmt::join(axes.calls, " and "));
  ranks.group = of_mesh.mesh;
  return ranks;
}

}  // namespace lockstep::parallel
