#include "lockstep/optim/averaged_model.h"

#include <string>

#include "lockstep/autograd/ops/functions.h"
#include "lockstep/nn/files/weights_internal.h"
#include "lockstep/nn/module_internal.h"
#include "lockstep/optim/state_internal.h"

namespace lockstep::optim {

AveragedModel::AveragedModel(nn::Module& module, const AveragedModelOptions& options)
    : module_(module), options_(options) {
  const double decay = options.decay.value_or(0);
  LOCKSTEP_CHECK(decay >= 0 && decay <= 1, "AveragedModel: decay is {}, expected 0 to 1", decay);
}

void AveragedModel::update_parameters(const nn::Module& model) {
  nn::refuse_parts("AveragedModel", model.parameters(), "update inside run.gathered");
  for (const nn::Parameter& parameter : model.parameters())
    LOCKSTEP_CHECK(parameter.sharding() == nn::Sharding::kNone,
                   "AveragedModel: a parameter is distributed over the ranks; update inside run.gathered");
  const StateDict own = module_.state_dict(), now = model.state_dict();
  const nn::StateDictLoad check({.where = "AveragedModel: ", .source = "model", .has_options = false}, own, now);
  const NoGradGuard no_grad;
  const double keep = options_.decay.value_or(static_cast<double>(n_averaged_) / static_cast<double>(n_averaged_ + 1));
  const auto update = [&](const std::string& name, const Tensor& average, bool averages) {
    const Tensor value = now.at(name).to(average.dtype()).to(average.device());
    if (n_averaged_ == 0 || !averages || !average.is_floating_point())
      average.copy_(value);
    else
      average.mul_(keep).add_(value, 1 - keep);
  };
  // A state dict names a tied parameter twice, these lists only once.
  for (const auto& [name, parameter] : module_.named_parameters()) update(name, parameter.master(), true);
  for (const auto& [name, buffer] : module_.named_buffers()) update(name, buffer.master(), options_.use_buffers);
  ++n_averaged_;
}

StateDict AveragedModel::state_dict() const {
  StateDict dict = {{"n_averaged", to_tensor(n_averaged_)}};
  for (const auto& [name, tensor] : module_.state_dict()) dict.insert("module." + name, tensor);
  return dict;
}

void AveragedModel::load_state_dict(const StateDict& state) {
  const std::int64_t count = StateReader(state).count("n_averaged");
  StateDict module;
  for (const auto& [name, tensor] : state) {
    if (name.starts_with("module.")) module.insert(name.substr(7), tensor);
  }
  module_.load_state_dict(module);
  n_averaged_ = count;
}

}  // namespace lockstep::optim
