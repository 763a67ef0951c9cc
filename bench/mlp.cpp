// A training step of the MLP 784-512-256-10: ReLU, cross entropy, SGD.
#include <lockstep/lockstep.h>

#include <cstdint>
#include <string>

#include "support/timing.h"

namespace ls = lockstep;

int main() {
  bench::start_a_thread_once();
  ls::set_num_threads(bench::threads());
  ls::manual_seed(0);

  for (const std::int64_t batch : {32, 128, 512}) {
    ls::nn::Sequential model(ls::nn::Linear(784, 512), ls::nn::ReLU(), ls::nn::Linear(512, 256), ls::nn::ReLU(),
                             ls::nn::Linear(256, 10));
    ls::nn::CrossEntropyLoss criterion;
    ls::optim::SGD optimizer(model.parameters(), {.lr = 0.01});
    const ls::Tensor x = ls::randn({batch, 784});
    const ls::Tensor y = ls::randint(0, 10, {batch});
    bench::measure(
        "mlp_step_" + std::to_string(batch),
        [&] {
          ls::Tensor loss = criterion(model(x), y);
          optimizer.zero_grad();
          loss.backward();
          optimizer.step();
        },
        2.0);
  }
}
