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
    if (!autograd::grad_mode()) return forward(inputs);
    return autograd::detail::checkpoint([this](const std::vector<Tensor>& x) { return std::vector{run_rest(x)}; },
                                        inputs)[0];
  }

 private:
  // The module's forward with the runners inside of this one.
  Tensor run_rest(const std::vector<Tensor>& x) const {
    const std::vector<std::shared_ptr<const nn::ModuleRunner>> runners = nn::runners_of(module_);
    const auto own = std::ranges::find(runners, this, [](const auto& each) { return each.get(); });
    return nn::run_inside(std::span(own + 1, runners.end()), x,
                          [this](const std::vector<Tensor>& y) { return module_.forward_inputs(y); });
  }

  const nn::Module& module_;  // below the model, so that it does not move
};

}  // namespace

void recompute(nn::Module& module) { nn::add_runner(module, std::make_shared<const RecomputeRunner>(module)); }

}  // namespace lockstep::parallel
