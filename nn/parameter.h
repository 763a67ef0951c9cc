// Parameters and buffers: shared handles on a tensor that a module owns, an optimizer steps and DDP reduces.
//
// A handle keeps its identity while the tensor inside it is replaced (`Module::to`, `load_state_dict`). Inside a
// replica's forward it resolves, through the thread's ReplicaView, to that replica's tensor; everywhere else it is the
// master.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "lockstep/autograd/functions.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::nn {

// The state behind the handles of one parameter or buffer. Its address is its identity.
struct TensorSlot {
  Tensor master;
};

// Which tensor stands for each parameter and buffer inside one replica's (or micro-batch's) forward. Filled by
// parallel/, looked up by Parameter and Buffer on the thread that installed it.
class ReplicaView {
 public:
  void set(const TensorSlot* slot, Tensor replica) { table_[slot] = std::move(replica); }
  const Tensor* find(const TensorSlot* slot) const {
    const auto found = table_.find(slot);
    return found == table_.end() ? nullptr : &found->second;
  }

 private:
  std::unordered_map<const TensorSlot*, Tensor> table_;
};

// The calling thread's view, null outside replicas.
const ReplicaView* current_replica_view();

// Installs a view for the calling thread while it lives.
class ReplicaViewGuard {
 public:
  explicit ReplicaViewGuard(const ReplicaView* view);
  ~ReplicaViewGuard();
  ReplicaViewGuard(const ReplicaViewGuard&) = delete;
  ReplicaViewGuard& operator=(const ReplicaViewGuard&) = delete;

 private:
  const ReplicaView* previous_;
};

// What Parameter and Buffer have in common. Two handles are equal where they share what is inside.
class TensorHandle {
 public:
  // The tensor inside.
  operator const Tensor&() const { return tensor(); }     // NOLINT: implicit, so that a parameter is used like a tensor
  const Tensor& operator*() const { return tensor(); }    // the tensor inside
  const Tensor* operator->() const { return &tensor(); }  // its members
  // The replica's tensor inside a replica's forward, otherwise the master.
  const Tensor& tensor() const;
  const Tensor& master() const { return slot_->master; }  // the module's own, also in a replica's forward
  // Replaces the tensor inside; every handle sees it.
  void set_master(Tensor tensor) const { slot_->master = std::move(tensor); }
  const TensorSlot* id() const { return slot_.get(); }  // the same for all handles on one parameter
  // The same parameter, not the same values.
  friend bool operator==(const TensorHandle& a, const TensorHandle& b) { return a.slot_ == b.slot_; }

 protected:
  explicit TensorHandle(Tensor tensor) : slot_(std::make_shared<TensorSlot>(TensorSlot{std::move(tensor)})) {}

 private:
  std::shared_ptr<TensorSlot> slot_;
};

// A tensor that is trained: requires grad.
class Parameter : public TensorHandle {
 public:
  explicit Parameter(Tensor tensor);
};

// A tensor that belongs to a module's state but is not trained.
class Buffer : public TensorHandle {
 public:
  explicit Buffer(Tensor tensor) : TensorHandle(std::move(tensor)) {}
};

// Operators would not be found beside handles alone: argument-dependent lookup stops at lockstep::nn.
using lockstep::operator+;
using lockstep::operator-;
using lockstep::operator*;
using lockstep::operator/;

}  // namespace lockstep::nn
