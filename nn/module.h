/// \file
/// Module: a part of a model, with parameters, buffers and children.
///
///     struct Net : nn::Module {
///       nn::Linear& fc = add<nn::Linear>("fc", 10, 1);
///       Tensor forward(const Tensor& x) const override { return sigmoid(fc(x)); }
///     };
///
/// A module owns its children, parameters and buffers on the heap, so the references that `add` returns stay valid when
/// the module is moved. A child may also have owners outside the model. A module cannot be copied. `forward` is const: several threads may run it while no thread
/// modifies the module.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/callback.h"
#include "lockstep/nn/files/rename.h"
#include "lockstep/nn/files/state_dict.h"
#include "lockstep/nn/parameter.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::nn {

/// Options of Module::load_state_dict.
struct LoadStateDictOptions {
  bool strict = true;   ///< names that are missing or unexpected, and other shapes, are errors
  bool assign = false;  ///< the module's tensors become those of the dict, without a copy
  Rename rename = {};   ///< from the dict's names to the module's
  /// Patterns of the module's names, or of modules with them: the dict has their matrices transposed, also square ones.
  /// A pattern that describes no matrix is an error.
  std::vector<std::string> transpose = {};
};

/// What did not match in a load. With `strict` all are empty.
struct LoadStateDictResult {
  std::vector<std::string> missing;      ///< names that only the module has; these tensors keep their values
  std::vector<std::string> unexpected;   ///< names that only the dict or file has
  std::vector<std::string> other_shape;  ///< names whose shapes differ; these tensors keep their values
};

struct SummaryOptions {
  std::optional<DType> dtype = std::nullopt;  ///< dtype of the inputs; by default that of the first parameter
  std::vector<Shape> more_inputs = {};        ///< shapes of the inputs after the first, as a decoder's memory
};

class Module;
class ModuleRunner;
struct ListedTensor;

/// hook(module, inputs), run before forward. A result that is not empty replaces the inputs.
using ForwardPreHook = Callback<std::vector<Tensor>(const Module& module, const std::vector<Tensor>& inputs)>;
/// hook(module, inputs, output), run after forward. A defined result replaces the output.
using ForwardHook = Callback<Tensor(const Module& module, const std::vector<Tensor>& inputs, const Tensor& output)>;

/// A part of a model, as the head of this file shows.
class Module {
 public:
  Module() = default;
  virtual ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  // --- building -----------------------------------------------------------------------------------------------------
  // Constructs a child of type M and returns it. Names of children, parameters and buffers must be unique within a
  // module, not empty, and without '.'; otherwise, and while the model is in a training mode, throws InvalidArgument.
  template <class M, class... Args>
  M& add(const std::string& name, Args&&... args) {
    check_name(name);  // before M draws random numbers
    constexpr bool fits = std::is_constructible_v<M, Args...>;
    static_assert(fits, "add<M>(name, arguments...): M has no constructor that takes these arguments");
    std::unique_ptr<M> child;
    if constexpr (fits) child = std::make_unique<M>(std::forward<Args>(args)...);
    return static_cast<M&>(add_child(name, std::move(child)));
  }
  /// Moves a module in: `Conv2d& c = add("c", Conv2d(1, 16, 3, {.padding = 1}));`
  template <class M>
  requires std::derived_from<M, Module> M& add(const std::string& name, M&& module) {
    check_name(name);
    return static_cast<M&>(add_child(name, std::make_unique<M>(std::forward<M>(module))));
  }
  /// Adds an existing module. Throws InvalidArgument for null, and for the child of a module.
  Module& add_child(const std::string& name, std::shared_ptr<Module> child);
  /// Registers a parameter. With an undefined tensor (a bias that is turned off), the parameter is not listed.
  Parameter& add_parameter(const std::string& name, const Tensor& tensor);
  /// Registers a parameter that another module owns as well (tied weights).
  Parameter& add_parameter(const std::string& name, const Parameter& parameter);
  Buffer& add_buffer(const std::string& name, const Tensor& tensor);  ///< state that is not trained; may be undefined
  Buffer& add_buffer(const std::string& name, const Buffer& buffer);
  // LibTorch's names of `add`, add_parameter and add_buffer.
  template <class M>
  requires std::derived_from<M, Module> M& register_module(const std::string& name, M&& module) {
    return add(name, std::forward<M>(module));
  }
  Parameter& register_parameter(const std::string& name, const Tensor& tensor, bool requires_grad = true);
  Buffer& register_buffer(const std::string& name, const Tensor& tensor) { return add_buffer(name, tensor); }

  // --- running ------------------------------------------------------------------------------------------------------
  // Computes the module's output. The default throws InvalidArgument; a module with other arguments need not override
  // it.
  virtual Tensor forward(const Tensor& x) const;
  /// The same for several inputs; DataParallel and DistributedDataParallel call it. The default passes a single input
  /// to forward, and throws InvalidArgument for any other number.
  virtual Tensor forward_inputs(const std::vector<Tensor>& inputs) const;
  /// Runs forward, or forward_inputs. An error is prefixed with the module's path: "net.fc1: linear: ...". A module with
  /// parameters or buffers that another module's forward runs without having registered it (`add`) causes a warning.
  Tensor operator()(const Tensor& x) const;
  Tensor operator()(const std::vector<Tensor>& inputs) const;
  /// Registers a hook that operator() runs before, or after, this module's forward. Hooks run in order of registration,
  /// on the thread that runs forward, for each replica and micro-batch, and again when autograd::checkpoint repeats
  /// forward. A hook may remove hooks of its module. Other code must not register or remove hooks while another thread
  /// runs the module. Throws InvalidArgument for an empty hook.
  HookHandle register_forward_pre_hook(ForwardPreHook hook);
  HookHandle register_forward_hook(ForwardHook hook);

  // --- queries ------------------------------------------------------------------------------------------------------
  const std::string& name() const { return name_; }  ///< name within the parent; empty for the root
  std::string type_name() const;                     ///< class name without namespaces: "Linear"
  /// This module as an M, or null if it is none: `if (auto* fc = module.as<Linear>())`. M may be a holder of interop.
  template <class M>
  auto* as() {
    if constexpr (requires { typename M::ContainedType; })
      return dynamic_cast<typename M::ContainedType*>(&current());
    else
      return dynamic_cast<M*>(&current());
  }
  std::vector<Module*> children() const;                         ///< direct children, in order
  std::vector<Module*> modules();                                ///< this module and all below it, parents first
  std::vector<std::pair<std::string, Module*>> named_modules();  ///< modules() with their paths; "" is this module
  /// The module's own parameters, then those of its children, in order. A tied parameter is listed once, under its
  /// first name.
  std::vector<Parameter> parameters() const;
  std::vector<std::pair<std::string, Parameter>> named_parameters() const;  ///< "body.0.weight"
  std::vector<Buffer> buffers() const;                                      ///< in the order of parameters()
  std::vector<std::pair<std::string, Buffer>> named_buffers() const;        ///< "norm.running_mean"

  // --- changing -----------------------------------------------------------------------------------------------------
  void apply(FunctionRef<void(Module&)> function);  ///< calls function(module) for each of modules(), in that order
  void train(bool on = true);                       ///< sets training mode for this module and all below it
  void eval() { train(false); }                     ///< the same as train(false)
  bool is_training() const { return current().training_; }  ///< whether training mode is on; initially true
  /// Converts the parameters and buffers. Handles, optimizers and hooks stay valid.
  void to(Device device);
  void to(const char* device) { to(Device(device)); }
  void to(DType dtype);  ///< floating-point tensors only; deferred ones remain deferred
  void zero_grad();      ///< makes all gradients undefined
  /// Turns requires_grad off, or on, for the parameters whose names, or modules above them, a pattern describes as in
  /// LoadStateDictOptions::transpose: freeze("encoder"), freeze("layers.*.norm1"). Returns their number, a tied one
  /// counted once. Frozen parameters lose their gradients, so that an optimizer's next step leaves them as they are.
  /// Throws InvalidArgument if the pattern describes no parameter, and for parameters that ShardedDataParallel or
  /// Pipeline has distributed.
  std::int64_t freeze(const std::string& pattern) { return set_requires_grad("freeze", pattern, false); }
  std::int64_t unfreeze(const std::string& pattern) { return set_requires_grad("unfreeze", pattern, true); }
  /// Puts `module` in the place of the module at `path`, and returns it:
  ///
  ///     net.replace("encoder.layers.0.linear1", Lora(std::move(net.encoder.linear1)));
  ///
  /// From then on all lists, calls, modes, hooks and conversions of the model have the new module. References to the
  /// old one stay valid and stand for the new one: `Linear& fc = add<Linear>("fc", ...)` runs it in fc(x), and
  /// fc.parameters(), fc.train() and the other functions of Module are the new module's. `fc.weight` is its parameter of
  /// this name, and undefined if it has none; the children of the old module in the same way. Not forwarded are
  /// functions of the old class: call fc(x), not fc.forward(x), and assign a tied parameter to the new module.
  ///
  /// Nothing is copied, so the new module has its own mode, device and hooks. Make optimizers and parallel modes
  /// afterwards. Throws InvalidArgument for a path without a module, a module that is null or the child of another,
  /// and while the model is in a training mode, tensor- or context-parallel.
  Module& replace(const std::string& path, std::unique_ptr<Module> module);
  template <class M>
  requires std::derived_from<M, Module> M& replace(const std::string& path, M&& module) {
    place_to_replace(path, &module);  // before the module is moved
    return static_cast<M&>(replace(path, std::make_unique<M>(std::forward<M>(module))));
  }

  // --- state --------------------------------------------------------------------------------------------------------
  // Parameters and buffers by PyTorch's names. The tensors are detached and share storage with the module's. Throws
  // InvalidArgument if tensor parallelism has cut a parameter.
  StateDict state_dict() const;
  /// Copies `dict` into the parameters and buffers, converting dtypes. Names and shapes match as in load_weights
  /// (nn/files/weights.h). Throws InvalidArgument and changes nothing if a shape differs or a name is missing or
  /// unexpected (strict), for different values of one tied tensor, and for deferred parameters.
  ///
  /// With `.assign` the module's tensors share memory with those of the dict and have their dtypes, as in PyTorch, and
  /// gradients become undefined; tensors that are not contiguous, or transposed, are copied. Make the optimizer
  /// afterwards: its state has the dtypes of before. Deferred parameters that the dict lacks get their initial values.
  LoadStateDictResult load_state_dict(const StateDict& dict, const LoadStateDictOptions& options = {});
  /// A table of all modules: path, type, output shape, parameters, bytes of parameters and buffers. Runs forward once
  /// in eval mode on zeros of `input_shape`, and of `.more_inputs` if forward takes several inputs:
  /// decoder.summary({2, 5, 8}, {.more_inputs = {{2, 7, 8}}}).
  std::string summary(const Shape& input_shape, const SummaryOptions& options = {});

 protected:
  Module(Module&& other);  ///< protected, to prevent slicing. Throws InvalidArgument for a module that was replaced.
  Module& operator=(Module&& other) noexcept;
  /// For containers.
  const std::vector<std::shared_ptr<Module>>& owned_children() const { return current().children_; }

 private:
  template <class Handle>
  struct Named {
    std::string name;
    std::unique_ptr<Handle> handle;  // on the heap: references to it survive a move of the module
  };
  friend class ReplacedCalls;
  friend class InTrainingMode;
  friend const Module& current_module(const Module& module);
  friend void add_runner(Module& module, std::shared_ptr<const ModuleRunner> runner);
  friend void remove_runner(Module& module, const ModuleRunner* runner);
  friend std::vector<std::shared_ptr<const ModuleRunner>> runners_of(const Module& module);
  friend Tensor run_without_hooks(const Module& module, const std::vector<Tensor>& inputs);
  friend std::vector<ListedTensor> listed_tensors(const Module& module);
  friend void set_parameter(Module& module, const std::string& name, const Parameter& parameter);
  friend void replace_parameter(Module& module, const std::string& name, const std::vector<Parameter>& slices);
  struct Hooks;  // module_hooks.cpp
  void check_name(const std::string& name) const;
  Tensor forward_with_hooks(std::vector<Tensor> inputs, bool is_single) const;
  template <class Forward>
  Tensor run(const Forward& forward) const;
  void warn_unregistered(const Module& root) const;
  const Module& root() const;
  // The module that stands in this one's place: itself, unless it was replaced.
  const Module& current() const { return replacement_ ? replacement_->current() : *this; }
  Module& current() { return replacement_ ? replacement_->current() : *this; }
  const Module& called() const;
  std::shared_ptr<Module>& place_to_replace(const std::string& path, const Module* by);
  void stand_for(Module* by);
  template <class Handle>
  void rebind(std::vector<Named<Handle>> Module::*entries, const std::string& name, const Handle& handle);
  std::int64_t set_requires_grad(const char* op, const std::string& pattern, bool on);
  std::string path_below(const Module* ancestor) const;
  template <class Visit>
  void visit(const std::string& path, const Visit& visitor) const;
  template <class Handle>
  std::vector<std::pair<std::string, Handle>> list(std::vector<Named<Handle>> Module::*entries) const;

  // Moved by operator=:
  std::vector<std::shared_ptr<Module>> children_;
  std::vector<Named<Parameter>> parameters_;
  std::vector<Named<Buffer>> buffers_;
  std::shared_ptr<Hooks> hooks_;  // null without hooks and runners
  bool training_ = true;
  // Set by the parent:
  const Module* parent_ = nullptr;
  std::string name_;
  std::string label_;                              // in traces: "fc Linear"
  std::optional<Shape>* traced_output_ = nullptr;  // set by summary(): receives the shape of the next output
  // Set by replace():
  Module* replacement_ = nullptr;                  // calls and queries of this module go there
  std::vector<std::shared_ptr<Module>> replaced_;  // those that stand for this one, for references to them
  mutable int training_modes_ = 0;                 // number of training modes that hold this model's lists
};

}  // namespace lockstep::nn
