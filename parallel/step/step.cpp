#include "lockstep/parallel/step/step.h"

#include "lockstep/parallel/step/model_state_internal.h"

namespace lockstep::parallel {
namespace {

// A module of which every rank has the whole state. Rank 0 saves it.
class ReplicatedState final : public ModelState {
 public:
  ReplicatedState(nn::Module& module, std::shared_ptr<ProcessGroup> group)
      : module_(module), group_(std::move(group)) {}
  ProcessGroup* group() const override { return group_.get(); }
  std::vector<StatePart> parts() const override {
    std::vector<StatePart> parts;
    for (const auto& [name, tensor] : module_.state_dict())
      parts.push_back({.name = name,
                       .part = tensor,
                       .shape = tensor.shape(),
                       .place = TensorPart::whole(tensor.shape()),
                       .is_saved = !group_ || group_->rank() == 0});
    return parts;
  }
  optim::NamedParameters parameters() const override { return module_.named_parameters(); }

 private:
  nn::Module& module_;
  std::shared_ptr<ProcessGroup> group_;
};

}  // namespace

std::shared_ptr<ModelState> replicated_state(nn::Module& module, std::shared_ptr<ProcessGroup> group) {
  return std::make_shared<ReplicatedState>(module, std::move(group));
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
