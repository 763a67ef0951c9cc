// Work dominated by overhead, not arithmetic: a logistic-regression training step and an add of ten elements.
#include <lockstep/lockstep.h>

#include "support/timing.h"

namespace ls = lockstep;

struct LogisticRegression : ls::nn::Module {
  ls::nn::Linear& fc = add<ls::nn::Linear>("fc", 10, 1);
  ls::Tensor forward(const ls::Tensor& x) const override { return ls::sigmoid(fc(x)); }
};

int main() {
  bench::start_a_thread_once();
  ls::set_num_threads(1);
  ls::manual_seed(0);

  LogisticRegression model;
  ls::nn::BCELoss criterion;
  ls::optim::SGD optimizer(model.parameters(), {.lr = 0.01});
  const ls::Tensor x = ls::randn({10, 10});
  const ls::Tensor y = ls::randint(0, 2, {10, 1}).to(ls::kFloat32);
  bench::measure("logreg_step", [&] {
    ls::Tensor loss = criterion(model(x), y);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  });

  const ls::NoGradGuard no_grad;
  const ls::Tensor a = ls::randn({10}), b = ls::randn({10});
  bench::measure("add10", [&] { ls::Tensor c = a + b; });
}
