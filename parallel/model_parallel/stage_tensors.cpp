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

StageTensors::StageTensors(const char* op, const nn::Module& module, const Stages& stages) : rank_(stages.rank) {
  for (int stage = 0; stage < stages.count(); ++stage) {
    for (std::size_t k = stages.begins[static_cast<std::size_t>(stage)];
         k < stages.begins[static_cast<std::size_t>(stage) + 1]; ++k) {
      const auto& [path, link] = stages.chain[k];
      for (const auto& [name, each] : link->named_parameters())
        add(op, nn::join(path, name), each, true, stage, stages);
      for (const auto& [name, each] : link->named_buffers()) add(op, nn::join(path, name), each, false, stage, stages);
    }
  }
  order_as(module);
}

void StageTensors::add(const char* op, const std::string& name, const nn::TensorHandle& handle, bool is_parameter,
                       int stage, const Stages& stages) {
  const auto known = std::ranges::find(entries_, handle.id(), [](const Entry& each) { return each.handle.id(); });
  if (known != entries_.end()) {
    LOCKSTEP_CHECK(known->rank == stages.rank_of(stage),
                   "{}: {} is {}, but they are in stages of the ranks {} and {}; parameters that stages share are not "
                   "supported yet: give each its own, or put both modules into one stage with .split_before",
                   op, name, known->name, known->rank, stages.rank_of(stage));
    return;
  }
  const Tensor& tensor = handle.master();
  entries_.push_back(
      {.handle = handle,
       .name = name,
       .options = {.dtype = tensor.dtype(), .device = nn::is_deferred(tensor) ? Device() : tensor.device()},
       .shape = tensor.shape(),
       .requires_grad = tensor.requires_grad(),
       .is_parameter = is_parameter,
       .rank = stages.rank_of(stage),
       .chunk = stages.chunk_of(stage)});
}

// Chain modules may be in another order than in the model.
void StageTensors::order_as(const nn::Module& module) {
  std::vector<Entry> ordered;
  const auto take = [&](const auto& named) {
    for (const auto& [name, handle] : named) {
      const auto found = std::ranges::find(entries_, handle.id(), [](const Entry& each) { return each.handle.id(); });
      ordered.push_back(*found);
    }
  };
  take(module.named_parameters());
  take(module.named_buffers());
  entries_ = std::move(ordered);
}

void StageTensors::leave_to_others() {
  for (const Entry& each : entries_) {
    each.handle.set_sharding(nn::Sharding::kStage);
    if (each.rank != rank_) each.handle.set_master(Tensor());
  }
}

void StageTensors::with_all(ProcessGroup& group, FunctionRef<void()> body) {
  std::vector<nn::Sharding> before;
  for (const Entry& each : entries_) before.push_back(each.handle.sharding());
  const Finally again([&] {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      entries_[i].handle.set_sharding(before[i]);
      if (entries_[i].rank != rank_) entries_[i].handle.set_master(Tensor());
    }
  });
  for (const Entry& each : entries_) {
    const NoGradGuard no_grad;
    const bool is_own = each.rank == rank_;
    // A copy, because a broadcast counts as a change of a tensor, also on the rank that sends it.
    const Tensor tensor = is_own ? raw::clone(each.handle.master()) : raw::empty(each.shape, each.options);
    group.broadcast(tensor, each.rank, {.phase = Phase::kParameters, .name = each.name})->wait();
    each.handle.set_sharding(nn::Sharding::kNone);
    if (!is_own) each.handle.set_master(tensor.requires_grad_(each.requires_grad));
  }
  body();
}

int StageTensors::chunk_of(const nn::Parameter& parameter) const {
  const auto found = std::ranges::find(entries_, parameter.id(), [](const Entry& each) { return each.handle.id(); });
  return found->chunk;
}

std::vector<bool> StageTensors::own_parameters() const {
  std::vector<bool> own;
  const nn::ParameterSlice* last = nullptr;
  for (const Entry& each : entries_) {
    if (!each.is_parameter) continue;
    const nn::ParameterSlice* const slice = each.handle.slice();
    const bool is_next = slice && last && slice->name == last->name && slice->index == last->index + 1;
    if (!is_next) own.push_back(each.rank == rank_);
    last = slice;
  }
  return own;
}

}  // namespace lockstep::parallel
