/// \file
/// Parameters and buffers: shared handles to a tensor that a module owns, an optimizer updates and DDP reduces.
///
/// A handle keeps its identity when `Module::to` or `load_state_dict` replaces its tensor. In the forward of a replica,
/// the handle resolves through the thread's ReplicaView to that replica's tensor; everywhere else, to the master.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "lockstep/autograd/ops/functions.h"
#include "lockstep/tensor/tensor.h"
#include "lockstep/tensor/tensor_part.h"

namespace lockstep::nn {

/// How ShardedDataParallel and Pipeline distribute a parameter over ranks. Functions that would be wrong for a part of
/// the model refuse such parameters.
enum class Sharding : std::uint8_t {
  kNone,     ///< whole, on this rank
  kSharded,  ///< the module's parameter: can be read inside backward and gathered only
  kPiece,    ///< this rank's elements, which an optimizer steps
  kStage,    ///< of a pipeline stage: an undefined tensor on the ranks of other stages
  kCut,      ///< replaced by slices (ParameterSlice), which the module has in its place; slice() is the first of them
};

/// What tensor parallelism has made of a parameter: its tensor is a slice of the whole parameter. A slice is an ordinary
/// parameter for optimizers and training modes, and may be sharded; functions that need the whole refuse it.
struct ParameterSlice {
  std::string name;      ///< of the whole parameter in the model: "up.weight"; the slice is listed as "up.weight[2/4]"
  Shape shape;           ///< of the whole parameter
  TensorPart part;       ///< the slice's elements in it
  int index = 0;         ///< number of the slice
  int of = 1;            ///< number of slices of the parameter, over all ranks
  bool is_copy = false;  ///< an earlier rank has the same slice (ColwiseParallel::repeat), and saves it
};

/// The state behind the handles of one parameter or buffer. Its address is its identity.
struct TensorSlot {
  Tensor master;
  Sharding sharding = Sharding::kNone;
  std::shared_ptr<const ParameterSlice> slice = nullptr;
};

/// Maps each parameter and buffer to its tensor in the forward of one replica or micro-batch. parallel/ fills the view;
/// Parameter and Buffer look up their tensor on the thread that installed it.
class ReplicaView {
 public:
  void set(const TensorSlot* slot, Tensor replica) { table_[slot] = std::move(replica); }
  const Tensor* find(const TensorSlot* slot) const {
    const auto found = table_.find(slot);
    return found == table_.end() ? nullptr : &found->second;
  }

 private:
  std::map<const TensorSlot*, Tensor> table_;  // the header of unordered_map would be a tenth of what users compile
};

/// The calling thread's view; null outside replicas.
const ReplicaView* current_replica_view();

/// Installs a view for the calling thread while the guard exists.
class ReplicaViewGuard {
 public:
  explicit ReplicaViewGuard(const ReplicaView* view);
  ~ReplicaViewGuard();
  ReplicaViewGuard(const ReplicaViewGuard&) = delete;
  ReplicaViewGuard& operator=(const ReplicaViewGuard&) = delete;

 private:
  const ReplicaView* previous_;
};

/// Base of Parameter and Buffer. Two handles are equal if they share their state.
class TensorHandle {
 public:
  /// The same as tensor().
  operator const Tensor&() const { return tensor(); }     // NOLINT: implicit, so that a parameter is used like a tensor
  const Tensor& operator*() const { return tensor(); }    ///< the same as tensor()
  const Tensor* operator->() const { return &tensor(); }  ///< members of tensor()
  // Queries of tensor(), as PyTorch's users write them.
  Tensor grad() const { return tensor().grad(); }
  const Shape& sizes() const { return tensor().sizes(); }
  std::int64_t size(std::int64_t dim) const { return tensor().size(dim); }
  std::int64_t numel() const { return tensor().numel(); }
  bool requires_grad() const { return tensor().requires_grad(); }
  /// In the forward of a replica the replica's tensor, otherwise the master.
  const Tensor& tensor() const;
  const Tensor& master() const { return slot_->master; }  ///< the module's tensor, also in the forward of a replica
  /// Replaces the master for all handles.
  void set_master(Tensor tensor) const { slot_->master = std::move(tensor); }
  Sharding sharding() const { return slot_->sharding; }                       ///< kNone, unless sharded
  void set_sharding(Sharding sharding) const { slot_->sharding = sharding; }  ///< for ShardedDataParallel
  const ParameterSlice* slice() const { return slot_->slice.get(); }          ///< null for a whole tensor
  void set_slice(ParameterSlice slice) const {                                ///< for tensor parallelism
    slot_->slice = std::make_shared<const ParameterSlice>(std::move(slice));
  }
  const TensorSlot* id() const { return slot_.get(); }  ///< the same for all handles of one parameter
  /// The same parameter, not the same values.
  friend bool operator==(const TensorHandle& a, const TensorHandle& b) { return a.slot_ == b.slot_; }

 protected:
  explicit TensorHandle(Tensor tensor) : slot_(std::make_shared<TensorSlot>(TensorSlot{.master = std::move(tensor)})) {}

 private:
  std::shared_ptr<TensorSlot> slot_;
};

/// A tensor that is trained. It requires grad.
class Parameter : public TensorHandle {
 public:
  explicit Parameter(Tensor tensor);
};

/// A tensor that belongs to a module's state but is not trained.
class Buffer : public TensorHandle {
 public:
  explicit Buffer(Tensor tensor) : TensorHandle(std::move(tensor)) {}
};

/// For expressions of handles alone: argument-dependent lookup searches only lockstep::nn.
using lockstep::operator+;
using lockstep::operator-;
using lockstep::operator*;
using lockstep::operator/;
using lockstep::operator<<;

}  // namespace lockstep::nn
