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
  ModuleRunner();
  virtual ~ModuleRunner();
  ModuleRunner(const ModuleRunner&) = delete;
  ModuleRunner& operator=(const ModuleRunner&) = delete;

  // The result of the module's call with `inputs`. `forward` is the module's own.
  virtual Tensor run(const std::vector<Tensor>& inputs, Forward forward) const = 0;
  // Whether there is any in this process: without one, nobody needs to look for those of a module.
  static bool exists();
};

// Replaces the module's runner; null removes it. No thread may run the module meanwhile.
void set_runner(Module& module, std::shared_ptr<const ModuleRunner> runner);
// Null: the module has none.
std::shared_ptr<const ModuleRunner> runner_of(const Module& module);

// body() inside the module's runner, for a forward with other arguments, which users call by its name.
template <class Body>
Tensor with_runner(const Module& module, const Body& body) {
  const std::shared_ptr<const ModuleRunner> runner = runner_of(module);
  return runner ? runner->run({}, [&](const std::vector<Tensor>&) { return body(); }) : body();
}

}  // namespace lockstep::nn
