// What all optimizers share: groups of parameters, their options and state, and how both are saved.
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

// What an optimizer changes: parameters, or groups of them with options of their own. Made from either by conversion, so
// that an optimizer has one constructor, and the compiler's message for a misspelt option stays short.
template <class Group>
class Groups {
 public:
  Groups(const std::vector<nn::Parameter>& params) : groups_(1) { groups_[0].params = params; }  // NOLINT: implicit
  Groups(std::initializer_list<nn::Parameter> params) : Groups(std::vector<nn::Parameter>(params)) {}
  Groups(std::vector<Group> groups) : groups_(std::move(groups)) {}  // NOLINT: implicit on purpose
  Groups(std::initializer_list<Group> groups) : groups_(groups) {}

  auto begin() const { return groups_.begin(); }  // of the groups, in order
  auto end() const { return groups_.end(); }      // past the last group

 private:
  std::vector<Group> groups_;
};

// Changes parameters by their gradients. It shares the parameters' handles, so they stay valid when the module moves to
// another device or loads a state; the state follows a parameter to its device and dtype at the next step.
//
// One thread uses it at a time. Schedulers point to it: it is neither copied nor moved.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Changes every parameter that has a gradient; the others, and their state, stay as they are.
  virtual void step() = 0;
  // Gradients become undefined, so that backward writes the next ones instead of adding to zeros.
  void zero_grad();

  // Learning rate of the first group, or of group `group`.
  double lr() const { return lr(0); }
  double lr(std::size_t group) const;
  // Of all groups, or of one. Throws InvalidArgument below 0.
  void set_lr(double lr);
  void set_lr(std::size_t group, double lr);
  std::size_t group_count() const { return group_sizes_.size(); }  // number of groups

  // Flat, with PyTorch's names: "state.<parameter>.<name>" for parameters that have been stepped, and
  // "param_groups.<group>.<option>" (f64, 0-d; flags are bool), "param_groups.<group>.params" (i64: the parameters'
  // indices). The tensors are copies.
  StateDict state_dict() const;
  // Takes over options and state. Throws InvalidArgument naming the key, and changes nothing, where `state` is not of
  // this kind of optimizer with these parameters.
  void load_state_dict(const StateDict& state) { prepare_load(state)(); }
  // Checks `state` and copies it; calling the result takes it over and cannot fail. For loading several parts all or
  // nothing (checkpoint.cpp).
  Callback<void()> prepare_load(const StateDict& state);

 protected:
  // One parameter and what the optimizer remembers about it.
  struct Slot {
    nn::Parameter parameter;  // what a step changes
    std::size_t group;        // whose options hold for it
    std::int64_t steps = 0;   // taken so far
    Tensor buffers[2] = {};   // undefined before the first step
  };
  // An option of one group: where it is stored, and the name it is saved under. Exactly one pointer is set.
  struct Option {
    const char* name;  // as it is saved
    double* number;    // null for a flag
    bool* flag;        // null for a number
  };

  Optimizer() = default;
  // Called by constructors, once per group. Throws InvalidArgument where a parameter is there already.
  void add_group(const char* optimizer, const std::vector<nn::Parameter>& parameters);
  // Throws InvalidArgument where no parameter was added.
  void require_parameters(const char* optimizer) const;
  // Makes `buffer` fit the parameter: zeros at first, later a copy where the parameter changed its device or dtype.
  static void fit(Tensor& buffer, const Tensor& parameter);

  std::vector<Slot> slots_;  // one for each parameter, groups in order

 private:
  struct Loaded;

  // The options of one group, lr first. The pointers are valid until the optimizer goes.
  virtual std::vector<Option> options(std::size_t group) = 0;
  // Throws InvalidArgument for values that the constructor would refuse; in the order of `options`.
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
