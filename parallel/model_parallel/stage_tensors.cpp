#include "lockstep/parallel/model_parallel/stage_tensors_internal.h"

#include <algorithm>
#include <utility>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/base/finally_internal.h"
#include "lockstep/nn/deferred.h"
#include "lockstep/nn/module_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {

namespace {

// An optimizer needs parameters.
void check_has_parameters(const char* op, const Stages& stages) {
  std::vector<std::string> modules(static_cast<std::size_t>(stages.ranks));
  std::vector<bool> has_parameters(modules.size());
  for (std::size_t k = 0; k < stages.chain.size(); ++k) {
    const auto rank = static_cast<std::size_t>(stages.rank_of(stages.stage_of(k)));
    modules[rank] += (modules[rank].empty() ? "" : ", ") + stages.chain[k].path;
    has_parameters[rank] = has_parameters[rank] || !stages.chain[k].module->parameters().empty();
  }
  for (std::size_t r = 0; r < modules.size(); ++r)
    LOCKSTEP_CHECK(has_parameters[r],
                   "{}: rank {} has no parameters, but only {}; choose other stages with .split_before, or use fewer "
                   "ranks",
                   op, r, modules[r]);
}

}  // namespace

StageTensors::StageTensors(const char* op, const nn::Module& module, const Stages& stages) : rank_(stages.rank) {
  if (stages.ranks > 1) check_has_parameters(op, stages);
  for (const auto& [name, each] : module.named_parameters()) add(name, each, true);
  for (const auto& [name, each] : module.named_buffers()) add(name, each, false);
  for (std::size_t k = 0; k < stages.chain.size(); ++k) {
    const auto& [path, link] = stages.chain[k];
    const int stage = stages.stage_of(k), rank = stages.rank_of(stage), chunk = stages.chunk_of(stage);
    for (const auto& [name, each] : link->named_parameters()) use(op, nn::join(path, name), each, rank, chunk);
    for (const auto& [name, each] : link->named_buffers()) use(op, nn::join(path, name), each, rank, chunk);
  }
}

void StageTensors::add(const std::string& name, const nn::TensorHandle& handle, bool is_parameter) {
  const Tensor& tensor = handle.master();
  entries_.push_back(
      {.handle = handle,
       .name = name,
       .options = {.dtype = tensor.dtype(), .device = nn::is_deferred(tensor) ? Device() : tensor.device()},
       .shape = tensor.shape(),
       .requires_grad = tensor.requires_grad(),
       .is_parameter = is_parameter});
}

// A stage of `rank`, its model chunk `chunk`, has the tensor under this name.
void StageTensors::use(const char* op, const std::string& name, const nn::TensorHandle& handle, int rank, int chunk) {
  Entry& entry = entry_of(handle);
  if (entry.rank < 0) entry.rank = rank;
  LOCKSTEP_CHECK(
      entry.is_parameter || entry.rank == rank,
      "{}: {} is {}, a buffer that stages of the ranks {} and {} would change apart; give each module its own", op,
      name, entry.name, entry.rank, rank);
  if (rank == rank_ && !entry.is_here) entry.is_here = true, entry.chunk = chunk;
}

void StageTensors::leave_to_others() {
  for (const Entry& each : entries_) {
    each.handle.set_sharding(nn::Sharding::kStage);
    if (!each.is_here) each.handle.set_master(Tensor());
  }
}

void StageTensors::with_all(ProcessGroup& group, FunctionRef<void()> body) {
  std::vector<nn::Sharding> before;
  for (const Entry& each : entries_) before.push_back(each.handle.sharding());
  const auto values_of = [](const Entry& each) {  // to notice a change
    const Tensor& tensor = each.handle.master();
    return std::pair(tensor.ref(), tensor.defined() ? tensor.version() : 0);
  };
  const Finally again([&] {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      entries_[i].handle.set_sharding(before[i]);
      if (!entries_[i].is_here) entries_[i].handle.set_master(Tensor());
    }
  });
  gather(group);
  std::vector<decltype(values_of(entries_[0]))> values;
  for (const Entry& each : entries_) values.push_back(values_of(each));
  body();
  for (std::size_t i = 0; i < entries_.size(); ++i)
    LOCKSTEP_CHECK(
        !entries_[i].is_parameter || values_of(entries_[i]) == values[i],
        "{} was changed inside gathered, and other ranks may not have the change; change a model in stages by "
        "its optimizer or by parallel::load_checkpoint",
        entries_[i].name);
}

// Gives this rank all tensors.
void StageTensors::gather(ProcessGroup& group) const {
  for (const Entry& each : entries_) {
    const NoGradGuard no_grad;
    // A copy, because a broadcast counts as a change of a tensor, also on the rank that sends it.
    const Tensor tensor = each.is_here ? raw::clone(each.handle.master()) : raw::empty(each.shape, each.options);
    group.broadcast(tensor, each.rank, {.phase = Phase::kParameters, .name = each.name})->wait();
    each.handle.set_sharding(nn::Sharding::kNone);
    if (!each.is_here) each.handle.set_master(tensor.requires_grad_(each.requires_grad));
  }
}

std::vector<StageRunner::Place> StageTensors::places() const {
  std::vector<StageRunner::Place> places;
  const nn::ParameterSlice* last = nullptr;
  for (const Entry& each : entries_) {
    if (!each.is_parameter) continue;
    const nn::ParameterSlice* const slice = each.handle.slice();
    const bool is_next = slice && last && slice->name == last->name && slice->index == last->index + 1;
    last = slice;
    if (is_next) continue;
    places.push_back(each.rank == rank_ ? StageRunner::Place::kHere
                     : each.is_here     ? StageRunner::Place::kCopy
                                        : StageRunner::Place::kElsewhere);
  }
  return places;
}

}  // namespace lockstep::parallel
