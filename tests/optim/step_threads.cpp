// The bits of a step do not depend on an element's position or on the number of threads.
#include "tests/optim/support.h"

TEST_CASE("an element gets the same bits at any position in a large parameter, with one thread and with three") {
  const std::int64_t n = 200'003;
  ls::manual_seed(3);
  const ls::Tensor start = ls::randn({n}), grad = ls::randn({n});
  const auto run = [&](std::int64_t first, std::int64_t count, int threads) {
    const int before = ls::num_threads();
    ls::set_num_threads(threads);
    const ls::nn::Parameter p(start.narrow(0, first, count).clone()), q(start.narrow(0, first, count).clone());
    ls::optim::SGD sgd({p}, {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true});
    ls::optim::AdamW adamw({q}, {.lr = 0.1});
    for (int i = 0; i < 3; ++i) {
      p->set_grad(grad.narrow(0, first, count).clone());
      q->set_grad(grad.narrow(0, first, count).clone());
      sgd.step();
      adamw.step();
    }
    ls::set_num_threads(before);
    return ls::cat({p->detach(), q->detach()});
  };
  const ls::Tensor whole = run(0, n, 1);
  CHECK(ls::equal(run(0, n, 3), whole));
  for (std::int64_t offset : {1, 5, 15}) {
    for (std::int64_t count : {1, 7, 16, 33}) {
      const ls::Tensor part = run(offset, count, 1);
      CHECK(ls::equal(part.narrow(0, 0, count), whole.narrow(0, offset, count)));
      CHECK(ls::equal(part.narrow(0, count, count), whole.narrow(0, n + offset, count)));
    }
  }
}
