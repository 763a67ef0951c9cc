// The engine with several threads.
#include <functional>
#include <thread>

#include "tests/support/testing.h"

namespace {

// Runs one training step on its own leaves and returns its gradient.
ls::Tensor step(std::uint32_t salt) {
  const ls::Tensor w = numbers({16, 16}, {.requires_grad = true}, salt), x = numbers({16, 16}, {}, salt + 1);
  ls::Tensor y = x;
  for (int i = 0; i < 5; ++i) y = ls::tanh(ls::linear(y, w));
  ls::sum(y * y).backward();
  return w.grad();
}

void run_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back([&body, i] { body(i); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

TEST_CASE("backwards of independent graphs may run in two threads at the same time, with the bits of a single thread") {
  const std::vector<ls::Tensor> want = {step(1), step(2)};
  run_threads(2, [&](int i) {
    for (int repeat = 0; repeat < 50; ++repeat) {
      const bool same = same_bits(step(static_cast<std::uint32_t>(i) + 1), want[static_cast<std::size_t>(i)]);
      CHECK(same);
    }
  });
}

TEST_CASE("a graph recorded in one thread runs backward in another") {
  const ls::Tensor x = ls::tensor({2.0}, {.requires_grad = true});
  ls::Tensor y;
  std::thread([&] { y = x * x; }).join();
  std::thread([&] { y.backward(); }).join();
  CHECK(x.grad().item<float>() == 4);
}

TEST_CASE("grad mode belongs to its thread") {
  const ls::NoGradGuard no_grad;
  bool other = false;
  std::thread([&] { other = ls::autograd::grad_mode(); }).join();
  CHECK(other);
  CHECK(!ls::autograd::grad_mode());
}

TEST_CASE("threads that share parameters may run forward and autograd::grad at the same time") {
  const ls::Tensor w = numbers({16, 16}, {.requires_grad = true}), x = numbers({16, 16}, {}, 2);
  const auto gradient = [&] { return ls::autograd::grad(ls::sum(ls::tanh(ls::linear(x, w))), w); };
  const ls::Tensor want = gradient();
  run_threads(3, [&](int) {
    for (int repeat = 0; repeat < 30; ++repeat) {
      const bool same = same_bits(gradient(), want);
      CHECK(same);
    }
  });
}

TEST_CASE("large products inside concurrent backwards share the pool without changing bits") {
  const auto large = [] {
    const ls::Tensor w = numbers({300, 300}, {.requires_grad = true}), x = numbers({300, 300}, {}, 2);
    ls::sum(ls::relu(ls::matmul(x, w))).backward();
    return w.grad();
  };
  const int before = ls::num_threads();
  ls::set_num_threads(2);
  const ls::Tensor want = large();
  run_threads(2, [&](int) {
    for (int repeat = 0; repeat < 4; ++repeat) {
      const bool same = same_bits(large(), want);
      CHECK(same);
    }
  });
  ls::set_num_threads(before);
}

TEST_CASE("an error in one thread's backward does not affect the other's") {
  const ls::Tensor want = step(3);
  run_threads(2, [&](int i) {
    for (int repeat = 0; repeat < 20; ++repeat) {
      if (i == 0) {
        const ls::Tensor x = ls::tensor({1.0}, {.requires_grad = true});
        const ls::Tensor y = x * 2;
        y.backward();
        bool thrown = false;
        try {
          y.backward();
        } catch (const ls::InvalidArgument&) {
          thrown = true;
        }
        CHECK(thrown);
      } else {
        const bool same = same_bits(step(3), want);
        CHECK(same);
      }
    }
  });
}
