#include "lockstep/parallel/step/step.h"

#include "lockstep/parallel/step/model_state_internal.h"

namespace lockstep::parallel {
namespace {

// A module of which every rank of the mode's group has the same state. The first one saves it.
class ReplicatedState final : public ModelState {
 public:
  ReplicatedState(nn::Module& module, const std::shared_ptr<ProcessGroup>& group)
      : module_(module), is_first_(!group || group->rank() == 0), ranks_(state_ranks(module, group)) {}
  ProcessGroup* group() const override { return ranks_.group.get(); }
  const StageRunner* stages() const override { return ranks_.stages.get(); }
  bool is_first() const override { return is_first_ && ranks_.saves_whole; }
  std::vector<StatePart> parts() const override {
    std::vector<StatePart> parts;
    for (const nn::ListedTensor& each : nn::listed_tensors(module_))
      parts.push_back(
          part_of(each, each.tensor, TensorPart::whole(each.tensor.shape()), is_first_ && saves(each, ranks_), ranks_));
    return parts;
  }
  optim::NamedParameters parameters() const override { return module_.named_parameters(); }

 private:
  nn::Module& module_;
  bool is_first_;
  StateRanks ranks_;
};

}  // namespace

std::shared_ptr<ModelState> replicated_state(nn::Module& module, const std::shared_ptr<ProcessGroup>& group) {
  return std::make_shared<ReplicatedState>(module, group);
}

std::vector<ShardedParameter> whole_parameters(const nn::Module& module) {
  std::vector<ShardedParameter> parameters;
  for (const auto& [name, parameter] : module.named_parameters()) {
    const Shape& shape = parameter.master().shape();
    parameters.push_back({.name = name, .parameter = parameter, .shape = shape, .part = TensorPart::whole(shape)});
  }
  return parameters;
}

}  // namespace lockstep::parallel
