// Runners: how a parallel strategy takes part in the forward of a module. Not installed.
#pragma once

#include <memory>
#include <span>
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

// The module's call with `inputs`, without its forward hooks: as if a part of the forward ran by itself.
Tensor run_without_hooks(const Module& module, const std::vector<Tensor>& inputs);

// forward(inputs) inside the runners.
Tensor run_inside(std::span<const std::shared_ptr<const ModuleRunner>> runners, const std::vector<Tensor>& inputs,
                  ModuleRunner::Forward forward);

// body() inside the module's runners, for a forward with other arguments, which users call by its name.
template <class Body>
Tensor with_runner(const Module& module, const Body& body) {
  const std::vector<std::shared_ptr<const ModuleRunner>> runners = runners_of(module);
  return run_inside(runners, {}, [&](const std::vector<Tensor>&) { return body(); });
}

}  // namespace lockstep::nn
