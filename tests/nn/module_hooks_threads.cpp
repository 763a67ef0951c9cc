// Forward hooks of a module that several threads run.
#include <atomic>
#include <vector>

#include "support.h"

TEST_CASE("the replicas of DataParallel run the hooks of the module, which may remove themselves meanwhile") {
  nn::Sequential model(nn::Linear(3, 2));
  std::atomic<int> rows = 0;
  const auto nothing = [](const nn::Module&, const std::vector<ls::Tensor>&) { return std::vector<ls::Tensor>(); };
  ls::HookHandle once = model[0].register_forward_pre_hook(nothing);
  std::atomic<bool> removed = false;
  model[0].register_forward_pre_hook([&](const nn::Module&, const std::vector<ls::Tensor>&) {
    if (!removed.exchange(true)) once.remove();
    return std::vector<ls::Tensor>();
  });
  model.register_forward_hook(
      [&](const nn::Module&, const std::vector<ls::Tensor>& in, const ls::Tensor&) -> ls::Tensor {
        rows += static_cast<int>(in[0].size(0));
        return {};
      });
  ls::parallel::DataParallel dp(model, {"cpu:0", "cpu:1"});
  dp(ls::ones({5, 3}));
  CHECK(rows == 5);
}
