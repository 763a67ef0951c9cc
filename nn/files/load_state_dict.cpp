// Module::load_state_dict, and the loads of model entries in checkpoints.
#include <map>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/nn/deferred.h"
#include "lockstep/nn/files/weights_internal.h"
#include "lockstep/nn/module_internal.h"
#include "lockstep/nn/replace_elements_internal.h"
#include "lockstep/tensor/memory/accelerator_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::nn {
namespace {

// Equal for the names of a tied tensor. A deferred tensor has no memory, but a storage of its own.
const void* id_of(const Tensor& tensor) {
  if (is_deferred(tensor)) return tensor.impl().storage.get();
  return tensor.numel() == 0 ? nullptr : tensor.raw_data();
}

std::vector<WeightPart> parts_of(const StateDict& own) {
  std::vector<WeightPart> parts;
  for (const auto& [name, tensor] : own)
    parts.push_back({.name = name,
                     .part = tensor,
                     .shape = tensor.shape(),
                     .place = TensorPart::whole(tensor.shape()),
                     .id = id_of(tensor)});
  return parts;
}

}  // namespace

StateDictLoad::StateDictLoad(const LoadCall& call, StateDict own, StateDict dict, const LoadStateDictOptions& options)
    : own_(std::move(own)), dict_(std::move(dict)) {
  for (const auto& entry : own_) {
    if (!options.assign && is_deferred(entry.second)) throw_deferred();
  }
  std::vector<WeightSource> sources;
  for (const auto& [name, tensor] : dict_)
    sources.push_back({name, tensor.defined() ? std::optional(tensor.shape()) : std::nullopt});
  const std::vector<WeightPart> parts = parts_of(own_);
  const WeightMatch match(call, sources, parts, {},
                          {.strict = options.strict, .rename = options.rename, .transpose = options.transpose});
  matches_ = match.matches();
  result_ = match.result();
  for (const WeightMatch::Match& each : matches_) {
    if (is_deferred((dict_.begin() + static_cast<std::ptrdiff_t>(each.source))->second)) throw_deferred();
  }
  for (const WeightMatch::Tied& tied : match.tied(parts)) {
    const Tensor first = tensor_of(tied.first), second = tensor_of(tied.second);
    const bool is_same = first.raw_data() == second.raw_data() && first.strides() == second.strides();
    if (!is_same && !same_values(first, second, tied.part->part.dtype()))
      throw_tied(call, sources[tied.first.source].name, sources[tied.second.source].name);
  }
}

Tensor StateDictLoad::tensor_of(const WeightMatch::Match& match) const {
  const Tensor from = (dict_.begin() + static_cast<std::ptrdiff_t>(match.source))->second.detach();
  const Shape& shape = own_.at(match.name).shape();
  return match.is_transposed     ? raw::transpose(from, 0, 1)
         : from.shape() == shape ? from
                                 : raw::view(raw::contiguous(from), shape);
}

void StateDictLoad::for_each(FunctionRef<void(const std::string& name, const Tensor& tensor)> use) const {
  for (const WeightMatch::Match& match : matches_) use(match.name, tensor_of(match));
}

void StateDictLoad::copy() const {
  const NoGradGuard no_grad;
  for_each([&](const std::string& name, const Tensor& tensor) { own_.at(name).copy_(tensor); });
}

namespace {

// Replaces the tensors of the module by those of the dict.
void assign(Module& module, const StateDictLoad& load) {
  std::map<const TensorSlot*, Parameter> parameters;
  std::map<const TensorSlot*, Buffer> buffers;
  std::map<std::string, const TensorSlot*> ids;
  for (const Parameter& parameter : module.parameters()) {
    LOCKSTEP_CHECK(parameter.sharding() == Sharding::kNone,
                   "load_state_dict: .assign: the parameters are distributed over the ranks; load with "
                   "parallel::load_weights");
    parameters.emplace(parameter.id(), parameter);
  }
  for (const Buffer& buffer : module.buffers()) buffers.emplace(buffer.id(), buffer);
  for (const ListedTensor& each : listed_tensors(module)) ids.emplace(each.name, each.id);
  load.for_each([&](const std::string& name, const Tensor& tensor) {
    LOCKSTEP_CHECK(tensor.is_floating_point() || !parameters.contains(ids.at(name)),
                   "load_state_dict: .assign: {} is {} in the dict, but parameters need a floating-point dtype; load "
                   "without .assign, which converts",
                   quoted_name(name), lockstep::name(tensor.dtype()));
  });
  const NoGradGuard no_grad;
  load.for_each([&](const std::string& name, const Tensor& tensor) {
    const Tensor fresh = raw::contiguous(tensor);
    if (const auto found = parameters.find(ids.at(name)); found != parameters.end())
      replace_without_grad(found->second.master(), fresh);
    else
      buffers.at(ids.at(name)).set_master(fresh);
  });
  materialize(module);  // parameters that the dict lacks
}

}  // namespace

LoadStateDictResult Module::load_state_dict(const StateDict& dict, const LoadStateDictOptions& options) {
  refuse_parts("load_state_dict", parameters(), "load with parallel::load_weights");
  const StateDictLoad load({.where = "load_state_dict: ", .source = "dict"}, state_dict(), dict, options);
  options.assign ? assign(*this, load) : load.copy();
  return load.result();
}

}  // namespace lockstep::nn
