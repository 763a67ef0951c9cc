/// \file
/// The base of all optimizers: groups of parameters, their options and state, saving and loading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/nn/parameter.h"
#include "lockstep/nn/state_dict.h"
#include "lockstep/tensor/callback.h"

namespace lockstep::optim {

/// The parameters of an optimizer: a list of parameters, or groups with their own options. Converts implicitly from
/// both, so that an optimizer needs one constructor, and compiler messages for misspelt options stay short.
template <class Group>
class Groups {
 public:
  Groups(const std::vector<nn::Parameter>& params) : groups_(1) { groups_[0].params = params; }  // NOLINT: implicit
  Groups(std::initializer_list<nn::Parameter> params) : Groups(std::vector<nn::Parameter>(params)) {}
  Groups(std::vector<Group> groups) : groups_(std::move(groups)) {}  // NOLINT: implicit on purpose
  Groups(std::initializer_list<Group> groups) : groups_(groups) {}

  auto begin() const { return groups_.begin(); }  ///< first group
  auto end() const { return groups_.end(); }      ///< past the last group

 private:
  std::vector<Group> groups_;
};

/// Updates parameters from their gradients. An optimizer holds handles, which stay valid when the module moves to
/// another device or loads a state. The next step converts the optimizer's state to the parameter's device and dtype.
///
/// Only one thread may use an optimizer at a time. Schedulers point to it, so it cannot be copied or moved.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Updates every parameter that has a gradient. The other parameters and their state do not change.
  virtual void step() = 0;
  /// Makes all gradients undefined, so that the next backward writes them instead of adding to zeros.
  void zero_grad();

  /// Learning rate of the first group, or of group `group`.
  double lr() const { return lr(0); }
  double lr(std::size_t group) const;
  /// Sets the learning rate of all groups, or of one. Throws InvalidArgument below 0.
  void set_lr(double lr);
  void set_lr(std::size_t group, double lr);
  std::size_t group_count() const { return group_sizes_.size(); }  ///< number of groups

  /// Flat, with PyTorch's names: `"state.<parameter>.<name>`" for parameters that have been updated, and
  /// `"param_groups.<group>.<option>`" (f64, 0-d; flags are bool), `"param_groups.<group>.params`" (i64: the parameters'
  /// indices). The tensors are copies.
  StateDict state_dict() const;
  /// Loads options and state. Throws InvalidArgument naming the key, and changes nothing, if `state` is not from an
  /// optimizer of this class with these parameters.
  void load_state_dict(const StateDict& state) { prepare_load(state)(); }
  /// Checks and copies `state`. Calling the result loads the copy and cannot fail. For loading several parts atomically
  /// (checkpoint.cpp).
  Callback<void()> prepare_load(const StateDict& state);

 protected:
  /// One parameter and its optimizer state.
  struct Slot {
    nn::Parameter parameter;  ///< the parameter to update
    std::size_t group;        ///< index of its group
    std::int64_t steps = 0;   ///< number of steps so far
    Tensor buffers[2] = {};   ///< undefined before the first step
  };
  /// An option of one group: its name and address. Exactly one pointer is set.
  struct Option {
    const char* name;  ///< name in the state dict
    double* number;    ///< null for a flag
    bool* flag;        ///< null for a number
  };

  Optimizer() = default;
  /// Called by constructors, once per group. Throws InvalidArgument if a parameter was added before.
  void add_group(const char* optimizer, const std::vector<nn::Parameter>& parameters);
  /// Throws InvalidArgument if no parameter was added.
  void require_parameters(const char* optimizer) const;
  /// Initialises `buffer` with zeros like the parameter, or converts it after the parameter changed its device or
  /// dtype.
  static void fit(Tensor& buffer, const Tensor& parameter);

  std::vector<Slot> slots_;  ///< one for each parameter, groups in order

 private:
  struct Loaded;

  // The options of one group, lr first. The pointers are valid while the optimizer exists.
  virtual std::vector<Option> options(std::size_t group) = 0;
  // Throws InvalidArgument for values that the constructor would reject. The order is that of `options`.
  virtual void check_options(std::span<const double> values) const = 0;
  // Names of the buffers in use, in the order of Slot::buffers, and whether `steps` is saved.
  virtual std::span<const char* const> buffer_names() const = 0;
  virtual bool saves_steps() const = 0;
  virtual double& group_lr(std::size_t group) = 0;

  void check_group(std::size_t group) const;
  Loaded read(const StateDict& state);

  std::vector<std::size_t> group_sizes_;
};

namespace detail {
// True for a finite number in [0, below), false for NaN.
inline bool is_option(double value, double below = 1e300) { return value >= 0 && value < below; }
// Throws InvalidArgument, naming optimizer, option and value, unless is_option.
void require_option(const char* optimizer, const char* option, double value, double below = 1e300);
}  // namespace detail

}  // namespace lockstep::optim
