// Runners: how a parallel strategy takes part in the forward of a module. Not installed.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/base/callback.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

// Runs the forward of the modules that have it, inside their forward hooks. Used by several threads, if they run the
// module.
class ModuleRunner {
 public:
  using Forward = FunctionRef<Tensor(const std::vector<Tensor>& inputs)>;
  ModuleRunner() = default;
  virtual ~ModuleRunner() = default;
  ModuleRunner(const ModuleRunner&) = delete;
  ModuleRunner& operator=(const ModuleRunner&) = delete;

  // The result of the module's call with `inputs`. `forward` is the module's own.
  virtual Tensor run(const std::vector<Tensor>& inputs, Forward forward) const = 0;
};

// Replaces the module's runner; null removes it. No thread may run the module meanwhile.
void set_runner(Module& module, std::shared_ptr<const ModuleRunner> runner);
// Null: the module has none.
std::shared_ptr<const ModuleRunner> runner_of(const Module& module);

}  // namespace lockstep::nn
