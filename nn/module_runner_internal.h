// Runners: how a parallel strategy takes part in the forward of a module. Not installed.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/base/callback.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

// Runs the forward of the modules that have it, inside their forward hooks. Used by several threads, if they run the
// module.
class ModuleRunner {
 public:
  // The forward of a module: with one tensor as `forward`, if the module was called so, or as `forward_inputs`.
  class Forward {
   public:
    template <class Function>
    Forward(const Function& function, bool takes_one = false) : takes_one(takes_one), function_(function) {}
    Tensor operator()(const std::vector<Tensor>& inputs) const { return function_(inputs); }
    const bool takes_one;

   private:
    FunctionRef<Tensor(const std::vector<Tensor>& inputs)> function_;
  };
  ModuleRunner();
  virtual ~ModuleRunner();
  ModuleRunner(const ModuleRunner&) = delete;
  ModuleRunner& operator=(const ModuleRunner&) = delete;

  // The result of the module's call with `inputs`. `forward` is the module's own.
  virtual Tensor run(const std::vector<Tensor>& inputs, Forward forward) const = 0;
  // Whether there is any in this process: without one, nobody needs to look for those of a module.
  static bool exists();
};

// Adds a runner, inside of those that the module has. No thread may run the module meanwhile.
void add_runner(Module& module, std::shared_ptr<const ModuleRunner> runner);
// Removes it, if the module has it.
void remove_runner(Module& module, const ModuleRunner* runner);
// The outermost first.
std::vector<std::shared_ptr<const ModuleRunner>> runners_of(const Module& module);
// Replaces them, for example by the same ones in their order after some were removed for a while.
void set_runners(Module& module, const std::vector<std::shared_ptr<const ModuleRunner>>& runners);

// While it exists, calls of the module go to `runner` alone, without hooks and other runners. No thread may run the module
// when it begins or ends.
class ReplacedCalls {
 public:
  ReplacedCalls(Module& module, std::shared_ptr<const ModuleRunner> runner);
  ~ReplacedCalls();
  ReplacedCalls(const ReplacedCalls&) = delete;
  ReplacedCalls& operator=(const ReplacedCalls&) = delete;

 private:
  Module& module_;
  std::shared_ptr<Module::Hooks> own_;
};

// The module that stands in the place of `module`: itself, unless Module::replace has put another one there.
const Module& current_module(const Module& module);
inline Module& current_module(Module& module) { return const_cast<Module&>(current_module(std::as_const(module))); }
[[noreturn]] void throw_other_type(const Module& module);
// The same as an M, for a call with more arguments than operator() takes. Throws InvalidArgument for another type.
template <class M>
const M& current_as(const Module& module) {
  const auto* const typed = dynamic_cast<const M*>(&current_module(module));
  if (!typed) throw_other_type(module);
  return *typed;
}

// While it exists, a training mode holds the lists of the model's parameters and modules: Module::replace throws, and so
// does what adds to the model.
class InTrainingMode {
 public:
  // Whether a mode holds the module or one above it.
  static bool holds(const Module& module);
  explicit InTrainingMode(const Module& module) : module_(current_module(module)) { ++module_.training_modes_; }
  ~InTrainingMode() { --module_.training_modes_; }
  InTrainingMode(const InTrainingMode&) = delete;
  InTrainingMode& operator=(const InTrainingMode&) = delete;

 private:
  const Module& module_;
};

// The module's call with `inputs`, without its forward hooks: as if a part of the forward ran by itself.
Tensor run_without_hooks(const Module& module, const std::vector<Tensor>& inputs);

// forward(inputs) inside the runners.
Tensor run_inside(std::span<const std::shared_ptr<const ModuleRunner>> runners, const std::vector<Tensor>& inputs,
                  ModuleRunner::Forward forward);

// body() inside the module's runners, for a forward with other arguments, which users call by its name. Throws
// InvalidArgument if the module was replaced: body() would run the old one.
template <class Body>
Tensor with_runner(const Module& module, const Body& body) {
  if (&current_module(module) != &module) [[unlikely]]
    throw_other_type(module);
  const std::vector<std::shared_ptr<const ModuleRunner>> runners = runners_of(module);
  return run_inside(runners, {}, [&](const std::vector<Tensor>&) { return body(); });
}

}  // namespace lockstep::nn
