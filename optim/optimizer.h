/// \file
/// The base of all optimizers: groups of parameters, their options and state, saving and loading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/callback.h"
#include "lockstep/nn/files/state_dict.h"
#include "lockstep/nn/parameter.h"

namespace lockstep::nn {
class Module;
}

namespace lockstep::optim {

class StateReader;

/// Parameters with their names.
using NamedParameters = std::vector<std::pair<std::string, nn::Parameter>>;

/// Groups of an optimizer, by the names of its parameters.
using GroupsOfParameters = std::map<std::string, std::size_t>;

/// The groups of a state dict.
struct SavedGroups {
  std::size_t count = 0;                               ///< their number
  std::vector<std::vector<std::size_t>> sources = {};  ///< for each optimizer group, its parameters' saved groups
};

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
  /// Runs `closure`, which computes the loss and its gradients, then step(); returns the loss.
  virtual Tensor step(FunctionRef<Tensor()> closure);
  /// Makes all gradients undefined, so that the next backward writes them instead of adding to zeros.
  void zero_grad();

  /// Learning rate of the first group, or of group `group`.
  double lr() const { return lr(0); }
  double lr(std::size_t group) const;
  /// Sets the learning rate of all groups, or of one. Schedulers that are constructed later start from it. Throws
  /// InvalidArgument below 0.
  void set_lr(double lr);
  void set_lr(std::size_t group, double lr);
  std::size_t group_count() const { return groups_.size(); }  ///< number of groups
  std::vector<nn::Parameter> parameters() const;              ///< those of all groups, in order

  /// Flat, with PyTorch's names: `"state.<parameter>.<name>"` for parameters that have been updated,
  /// `"param_groups.<group>.<option>"` (f64; 0-d, or a list; flags are bool) and, once a scheduler has been
  /// constructed, `"param_groups.<group>.initial_lr"`. The tensors are copies.
  ///
  /// `<parameter>` is the parameter's index, and `"param_groups.<group>.params"` (i64) lists the indices. With a model
  /// that has all parameters of the optimizer, it is the parameter's name in the model ("fc.weight"), and
  /// `"param_group.<parameter>"` (i64) holds its group and index.
  ///
  /// Throws InvalidArgument, as load_state_dict does, if parameters are a rank's pieces of a ShardedDataParallel, or those
  /// of its stages of a Pipeline.
  StateDict state_dict(const nn::Module* model = nullptr) const;
  /// Loads options and state. A state by name may come from an optimizer with other groups, or with the parameters in
  /// another order, if `model` gives the same names. A group whose parameters were not one group in the state keeps its
  /// own options, but takes the learning rate if all its parameters had the same one. Without `model`, a state by name
  /// is loaded by its indices. Throws InvalidArgument naming the key, and changes nothing, if `state` is not from an
  /// optimizer of this class with these parameters.
  void load_state_dict(const StateDict& state, const nn::Module* model = nullptr) { prepare_load(state, model)(); }
  /// Checks and copies `state`. Calling the result loads the copy and cannot fail. For loading several parts atomically
  /// (checkpoint.cpp). Sets `groups`, unless null, to those of `state`, for the scheduler.
  Callback<void()> prepare_load(const StateDict& state, const nn::Module* model = nullptr,
                                SavedGroups* groups = nullptr);

  /// As state_dict(model) and prepare_load(state, model), with the names of a list. Parameters need not be in a module.
  /// The tensors of `shared_state` share the optimizer's memory. `elsewhere` are parameters of the same groups that
  /// optimizers of other ranks step: `state` has their groups, but not their state.
  StateDict shared_state(const NamedParameters& names) const;
  Callback<void()> prepare_load(const StateDict& state, const NamedParameters& names, SavedGroups* groups = nullptr,
                                const GroupsOfParameters& elsewhere = {});
  /// Throws InvalidArgument if parameters are a rank's pieces of a ShardedDataParallel, or those of its stages of a
  /// Pipeline, whose state would be a part.
  void require_whole(const char* operation) const;
  /// Names of the tensors that the optimizer keeps for each parameter, with its shape: "exp_avg".
  std::vector<const char*> buffer_names() const {
    return layout_.own_shapes ? std::vector<const char*>() : layout_.buffers;
  }

 protected:
  /// One parameter and its optimizer state.
  struct Slot {
    nn::Parameter parameter;  ///< the parameter to update
    std::size_t group;        ///< index of its group
    std::int64_t steps = 0;   ///< number of steps so far
    Tensor buffers[3] = {};   ///< undefined before the first step
  };
  /// The optimizer's class, and what it saves under PyTorch's names.
  struct Layout {
    const char* type;  ///< name of the class, for messages
    /// Options of each group, lr first. Neighbours of the same name are saved as one list (betas).
    std::vector<const char*> options;
    std::size_t flags = 0;                  ///< how many options, the last ones, are flags: 0 or 1, saved as bool
    std::vector<const char*> buffers = {};  ///< names of Slot::buffers, at most three
    bool saves_steps = false;               ///< whether a step depends on Slot::steps
    std::size_t optional_buffers = 0;       ///< how many buffers, the last ones, may be undefined after a step
    bool own_shapes = false;                ///< whether buffers have shapes of their own: see buffer_shape
  };

  explicit Optimizer(Layout layout) : layout_(std::move(layout)) {}
  /// Called by constructors and add_param_group, once per group, with its options in the order of Layout::options.
  /// Throws InvalidArgument if check_options does, or if a parameter was added before.
  void add_group(const std::vector<nn::Parameter>& parameters, std::vector<double> options);
  /// Throws InvalidArgument if no parameter was added.
  void require_parameters() const;
  /// The options of a group, in the order of Layout::options.
  std::span<const double> options(std::size_t group) const { return groups_[group].options; }
  const char* type() const { return layout_.type; }  ///< see Layout
  /// Initialises `buffer` with zeros like the parameter, or of another shape, or converts it after the parameter changed its
  /// device or dtype.
  static void fit(Tensor& buffer, const Tensor& parameter) { fit(buffer, parameter, parameter.shape()); }
  static void fit(Tensor& buffer, const Tensor& parameter, const Shape& shape);
  /// step() of the optimizers of the library (step_internal.h): calls `run(list, numbers_of(options, stage))` for lists of
  /// parameters of one group, stage, dtype and device. `stage_of(slot)` creates the state of a parameter and returns the
  /// number, besides its options, on which its update depends. Increments Slot::steps.
  template <class Run, class StageOf, class NumbersOf>
  void step_in_lists(const Run& run, const StageOf& stage_of, const NumbersOf& numbers_of);

  std::vector<Slot> slots_;  ///< one for each parameter, groups in order

 private:
  struct Group {
    std::vector<double> options;
    std::size_t size;        // number of parameters
    double initial_lr = -1;  // the base rate of schedulers; -1: none was constructed
  };

  friend class Scheduler;
  // The base rate of a group for schedulers, which may have changed the rate since: the rate when the first one was
  // constructed, or the one that set_lr has set since.
  double initial_lr(std::size_t group);
  // "momentum", or the first of "betas", of all groups, for OneCycleLR.
  friend class OneCycleLR;
  std::size_t momentum_option() const;
  bool has_momentum() const { return momentum_option() < layout_.options.size(); }
  void set_momentum(double momentum);

  // Throws InvalidArgument for options of a group that are out of range.
  virtual void check_options(std::span<const double> options) const = 0;
  // The shape of a parameter's state Slot::buffers[buffer].
  virtual Shape buffer_shape(const Tensor& parameter, std::size_t) const { return parameter.shape(); }
  // State that does not belong to one parameter. `labels` are the names or indices of the parameters in keys; the state
  // is saved with the first. Calling the result of prepare_common loads the state and cannot fail.
  virtual void save_common(StateDict&, const std::vector<std::string>&) const {}
  virtual Callback<void()> prepare_common(const StateReader&, const std::vector<std::string>&) { return {}; }

  void check_group(std::size_t group) const;
  bool is_flag(std::size_t option) const { return option + layout_.flags >= layout_.options.size(); }
  std::size_t list_size(std::size_t option) const;  // number of options that are saved as one list, from `option` on

  // optimizer_state.cpp
  struct Saved;
  std::vector<std::string> labels_from(const NamedParameters& names) const;  // of each parameter; empty: not in it
  Group read_group(const StateReader& reader, std::size_t group) const;
  Saved read_by_index(const StateReader& reader) const;
  Saved read_by_name(const StateReader& reader, const NamedParameters& names,
                     const GroupsOfParameters& elsewhere) const;
  Saved read(const StateReader& reader, const NamedParameters& names, const GroupsOfParameters& elsewhere) const;
  std::vector<Group> merged_groups(const Saved& saved) const;
  std::vector<Slot> read_slots(const StateReader& reader, const std::vector<std::string>& labels) const;

  Layout layout_;
  std::vector<Group> groups_;
};

namespace detail {
// True for a finite number in [0, below), false for NaN.
inline bool is_option(double value, double below = 1e300) { return value >= 0 && value < below; }
// Throws InvalidArgument, naming optimizer, option and value, unless is_option.
void require_option(const char* optimizer, const char* option, double value, double below = 1e300);
}  // namespace detail

}  // namespace lockstep::optim
