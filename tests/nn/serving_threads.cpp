// A model that several threads run: the results are those of one thread, and each thread has its own guards.
#include <atomic>
#include <barrier>
#include <thread>

#include "support.h"

namespace {

struct Net : nn::Module {
  nn::TransformerEncoder& encoder =
      add<nn::TransformerEncoder>("encoder", 2, 8, 2, nn::TransformerEncoderLayerOptions{.dim_feedforward = 16});
  nn::BatchNorm1d& norm = add<nn::BatchNorm1d>("norm", 8);
  nn::Linear& head = add<nn::Linear>("head", 8, 3);
  ls::Tensor forward(const ls::Tensor& x) const override { return head(norm(encoder(x).select(1, 0))); }
};

// Runs body(thread) on `count` threads that start at the same time. doctest's assertions may be used in the body.
template <class Body>
void on_threads(int count, const Body& body) {
  std::barrier start(count);
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i)
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      body(i);
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

TEST_CASE("threads that serve one model in eval mode have the bits of one thread") {
  Net net;
  net.eval();
  constexpr int kThreads = 4, kRequests = 12;
  std::vector<ls::Tensor> inputs, wanted;
  for (int i = 0; i < kThreads * kRequests; ++i) {
    inputs.push_back(numbers({1 + i % 3, 4, 8}, {}, static_cast<std::uint32_t>(i)));
    const ls::NoGradGuard no_grad;
    wanted.push_back(net(inputs.back()));
  }
  std::atomic<int> wrong = 0;
  on_threads(kThreads, [&](int thread) {
    const ls::InferenceGuard guard;
    for (int i = thread; i < kThreads * kRequests; i += kThreads) {
      const ls::Tensor y = net(inputs[static_cast<std::size_t>(i)]);
      if (!y.is_inference() || y.requires_grad() || !same_bits(y, wanted[static_cast<std::size_t>(i)])) ++wrong;
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE("a guard is its thread's: one thread trains while others serve another model") {
  Net served;
  served.eval();
  nn::Linear trained(8, 3), alone(8, 3);
  alone.load_state_dict(trained.state_dict());
  const ls::Tensor x = numbers({2, 4, 8}), rows = x.select(1, 0);
  const auto train = [&](nn::Linear& model) {
    ls::optim::SGD optimizer(model.parameters(), {.lr = 0.1});
    for (int step = 0; step < 20; ++step) {
      optimizer.zero_grad();
      ls::sum(ls::square(model(rows))).backward();
      optimizer.step();
    }
  };
  train(alone);
  std::atomic<int> wrong = 0;
  on_threads(3, [&](int thread) {
    if (thread == 0) return train(trained);
    const ls::InferenceGuard guard;
    for (int i = 0; i < 20; ++i) wrong += served(x).is_inference() ? 0 : 1;
  });
  CHECK(wrong == 0);
  CHECK(nn::parameter_hash(trained) == nn::parameter_hash(alone));
}

TEST_CASE("memory of served requests is reused, and empty_cache returns it") {
  Net net;
  net.eval();
  const ls::Tensor x = numbers({2, 4, 8});
  const auto serve = [&] {
    on_threads(3, [&](int) {
      const ls::InferenceGuard guard;
      for (int i = 0; i < 5; ++i) net(x);
    });
  };
  serve();
  const std::int64_t live = ls::allocator_stats().allocated_bytes;
  serve();
  CHECK(ls::allocator_stats().allocated_bytes == live);  // results are freed, whichever thread freed them
  CHECK(ls::allocator_stats().cached_bytes > 0);
  ls::empty_cache();
  CHECK(ls::allocator_stats().cached_bytes == 0);
}
