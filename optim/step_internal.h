// Helpers for the steps of all optimizers: gradients, and lists of parameters to update. Not installed.
#pragma once

#include <array>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/autograd/history_internal.h"
#include "lockstep/base/trace.h"
#include "lockstep/nn/parameter.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/tensor/memory/capture_internal.h"
#include "lockstep/tensor/ops/optim_ops_internal.h"

namespace lockstep::optim {

// Throws InvalidArgument for a parameter that an optimizer cannot step: one that is distributed over ranks, whose pieces
// have the gradients, one that tensor parallelism has replaced by slices, or one in a pipeline stage of another rank.
[[noreturn]] void throw_elsewhere(const nn::Parameter& parameter);
inline void require_here(const nn::Parameter& parameter) {
  const nn::Sharding sharding = parameter.sharding();
  if (sharding == nn::Sharding::kSharded || sharding == nn::Sharding::kCut || !parameter.master().defined())
      [[unlikely]]
    throw_elsewhere(parameter);
}

// The gradient of a parameter, without a reference count; null if there is none. Throws as require_here.
inline const Tensor* gradient(const nn::Parameter& parameter) {
  require_here(parameter);
  const autograd::History* history = autograd::history(parameter.master());
  return history && history->grad.defined() ? &history->grad : nullptr;
}

// Throws InvalidArgument unless the parameter, number `index` of an optimizer of this type, is f32 or f64.
[[noreturn]] void throw_dtype(const char* type, std::size_t index, const nn::Parameter& parameter);
inline void require_dtype(const char* type, std::size_t index, const nn::Parameter& parameter) {
  const DType dtype = parameter.master().dtype();
  if (dtype != kFloat32 && dtype != kFloat64) [[unlikely]]
    throw_dtype(type, index, parameter);
}

// The parameters that one call of a raw operation updates: those with equal hyperparameters.
class StepList {
 public:
  // Whether a parameter can be added: there is room, and dtype and device are those of the list.
  bool takes(const Tensor& parameter) const {
    if (size_ == 0) return true;
    const TensorImpl &first = list_[0].parameter->impl(), &impl = parameter.impl();
    return size_ < list_.size() && first.dtype == impl.dtype && first.storage->device() == impl.storage->device();
  }
  // Adds a reference to a parameter, which must stay valid until clear().
  void add(const raw::Stepped& stepped) { list_[size_++] = stepped; }
  void clear() { size_ = 0; }
  std::span<const raw::Stepped> all() const { return {list_.data(), size_}; }
  Device device() const { return list_[0].parameter->device(); }

 private:
  std::array<raw::Stepped, raw::kMostStepped> list_;
  std::size_t size_ = 0;
};

template <class Run, class StageOf, class NumbersOf>
void Optimizer::step_in_lists(const Run& run, const StageOf& stage_of, const NumbersOf& numbers_of) {
  const TraceSpan span(TraceKind::kOptimizer, type());
  StepList list;
  std::vector<std::size_t> captured;  // slots of `list` whose steps a CUDA graph must count
  std::size_t group = 0;              // the group and the stage of all parameters in `list`
  std::int64_t stage = 0;
  const auto take = [&] {
    if (list.all().empty()) return;
    auto numbers = numbers_of(options(group), stage);
    capture::keep_on_device(numbers, list.device(),
                            [this, group, stage_of, numbers_of, slots = std::exchange(captured, {})] {
                              const std::int64_t next = stage_of(slots_[slots[0]]);
                              for (const std::size_t slot : slots) ++slots_[slot].steps;
                              return numbers_of(options(group), next);
                            });
    run(list.all(), numbers);
    list.clear();
  };
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    const Tensor& parameter = slot.parameter.master();
    const Tensor* grad = gradient(slot.parameter);
    if (!grad) continue;
    require_dtype(type(), i, slot.parameter);
    const std::int64_t own = stage_of(slot);
    if (slot.group != group || own != stage || !list.takes(parameter)) take();
    group = slot.group;
    stage = own;
    list.add({.parameter = &parameter, .grad = grad, .state = {&slot.buffers[0], &slot.buffers[1], &slot.buffers[2]}});
    if (capture::is_active(parameter.device())) captured.push_back(i);
  }
  take();
  for (Slot& slot : slots_) slot.steps += gradient(slot.parameter) != nullptr;
}

}  // namespace lockstep::optim
