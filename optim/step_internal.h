// Helpers for the steps of all optimizers: gradients, and lists of parameters to update. Not installed.
#pragma once

#include <array>
#include <span>

#include "lockstep/autograd/history_internal.h"
#include "lockstep/nn/parameter.h"
#include "lockstep/tensor/optim_ops_internal.h"

namespace lockstep::optim {

[[noreturn]] void throw_sharded();

// The gradient of a parameter, without a reference count; null if there is none. Throws InvalidArgument for a parameter
// that is distributed over ranks: its pieces have the gradients.
inline const Tensor* gradient(const nn::Parameter& parameter) {
  if (parameter.sharding() == nn::Sharding::kSharded) [[unlikely]]
    throw_sharded();
  const autograd::History* history = autograd::history(parameter.master());
  return history && history->grad.defined() ? &history->grad : nullptr;
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

}  // namespace lockstep::optim
