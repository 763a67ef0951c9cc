#include "lockstep/parallel/model_parallel/recompute_internal.h"

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/autograd/checkpoint.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/nn/module_runner_internal.h"

namespace lockstep::parallel {
namespace {

class RecomputeRunner final : public nn::ModuleRunner {
 public:
  explicit RecomputeRunner(const nn::Module& module) : module_(module) {}

  Tensor run(const std::vector<Tensor>& inputs, Forward forward) const override {
    // Empty: by forward with other arguments, inside of this one or called by its name.
    if (!autograd::grad_mode() || inputs.empty()) return forward(inputs);
    const auto repeated = [this, takes_one = forward.takes_one](const std::vector<Tensor>& x) {
      return std::vector{run_rest(x, takes_one)};
    };
    return autograd::detail::checkpoint(repeated, inputs)[0];
  }

 private:
  // The module's forward with the runners inside of this one.
  Tensor run_rest(const std::vector<Tensor>& x, bool takes_one) const {
    const std::vector<std::shared_ptr<const nn::ModuleRunner>> runners = nn::runners_of(module_);
    const auto own = std::ranges::find(runners, this, [](const auto& each) { return each.get(); });
    const auto own_forward = [&](const std::vector<Tensor>& y) {
      return takes_one && y.size() == 1 ? module_.forward(y[0]) : module_.forward_inputs(y);
    };
    return nn::run_inside(std::span(own == runners.end() ? own : own + 1, runners.end()), x, {own_forward, takes_one});
  }

  const nn::Module& module_;  // below the model, so that it does not move
};

}  // namespace

void recompute(nn::Module& module) {
  for (const auto& runner : nn::runners_of(module)) {
    if (dynamic_cast<const RecomputeRunner*>(runner.get())) return;
  }
  nn::add_runner(module, std::make_shared<const RecomputeRunner>(module));
}

}  // namespace lockstep::parallel
