#include "lockstep/nn/parameter.h"

#include "lockstep/autograd/thread_context_internal.h"

namespace lockstep::nn {
// The view is the thread's replica context. autograd restores it when it runs a node backward.
const ReplicaView* current_replica_view() { return static_cast<const ReplicaView*>(autograd::replica_context()); }

ReplicaViewGuard::ReplicaViewGuard(const ReplicaView* view) : previous_(current_replica_view()) {
  autograd::set_replica_context(view);
}
ReplicaViewGuard::~ReplicaViewGuard() { autograd::set_replica_context(previous_); }

const Tensor& TensorHandle::tensor() const {
  if (const ReplicaView* view = current_replica_view()) [[unlikely]] {
    if (const Tensor* replica = view->find(slot_.get())) return *replica;
  }
  return slot_->master;
}

// Detached, so that the parameter is a leaf and the argument is not changed.
Parameter::Parameter(Tensor tensor) : TensorHandle(tensor.defined() ? tensor.detach() : tensor) {
  if (master().defined()) master().requires_grad_();
}

}  // namespace lockstep::nn
