// f32 elements through one operation each, and a softmax over rows. Every call allocates its result.
#include <lockstep/lockstep.h>

#include "support/timing.h"

namespace ls = lockstep;

int main() {
  bench::start_a_thread_once();
  ls::set_num_threads(bench::threads());
  ls::manual_seed(0);

  const ls::NoGradGuard no_grad;
  const ls::Tensor a = ls::randn({1'000'000}), b = ls::randn({1'000'000});
  bench::measure("exp_1m", [&] { ls::Tensor c = ls::exp(a); });
  bench::measure("sigmoid_1m", [&] { ls::Tensor c = ls::sigmoid(a); });
  bench::measure("tanh_1m", [&] { ls::Tensor c = ls::tanh(a); });
  bench::measure("add_1m", [&] { ls::Tensor c = a + b; });
  bench::measure("sum_1m", [&] { ls::Tensor c = a.sum(); });

  const ls::Tensor rows = ls::randn({1024, 1024});
  bench::measure("softmax_1024", [&] { ls::Tensor c = ls::softmax(rows, 1); });

  const ls::Tensor few = ls::randn({100'000}), many = ls::randn({4'000'000});
  bench::measure("gelu_100k", [&] { ls::Tensor c = ls::gelu(few); });
  bench::measure("gelu_4m", [&] { ls::Tensor c = ls::gelu(many); });
}
