// Contributions to one gradient are added in the order (micro-batch, newest first), for any order of recording and of
// computation.
#include <algorithm>

#include "lockstep/autograd/history_internal.h"
#include "lockstep/tensor/random.h"
#include "tests/support/testing.h"

namespace {

constexpr int kMicroBatches = 4;

// Records one micro-batch's part of the loss under its number. Magnitudes differ, so that another order gives other
// bits.
ls::Tensor part(const ls::Tensor& w, int micro_batch) {
  const ls::random::MicroBatchGuard guard(micro_batch);
  const ls::Tensor x = numbers({6, 5}, {}, static_cast<std::uint32_t>(micro_batch) + 20) * std::pow(7.3, micro_batch);
  const ls::Tensor hidden = ls::linear(x, w);
  return ls::sum(hidden * hidden) + ls::sum(ls::tanh(ls::linear(x, w)));
}

// Returns the gradient with the parts recorded in `recorded` order and added up in `added` order.
ls::Tensor gradient(const std::vector<int>& recorded, const std::vector<int>& added, bool with_home = false) {
  const ls::Tensor w = numbers({3, 5}, {.requires_grad = true});
  if (with_home) ls::autograd::set_gradient_home(w, ls::zeros({3, 5}));
  std::vector<ls::Tensor> parts(kMicroBatches);
  for (int micro_batch : recorded) parts[static_cast<std::size_t>(micro_batch)] = part(w, micro_batch);
  std::vector<ls::Tensor> losses;
  for (int micro_batch : added) losses.push_back(parts[static_cast<std::size_t>(micro_batch)]);
  ls::sum(ls::stack(losses)).backward();
  return w.grad();
}

}  // namespace

TEST_CASE("a gradient of several micro-batches has the same bits for any order of recording and joining") {
  std::vector<int> order = {0, 1, 2, 3};
  const ls::Tensor want = gradient(order, order);
  std::vector<int> other = order;
  do {
    CHECK(same_bits(gradient(other, order), want));
    CHECK(same_bits(gradient(other, other), want));
    CHECK(same_bits(gradient(order, other), want));
    CHECK(same_bits(gradient(other, order, true), want));
  } while (std::next_permutation(other.begin(), other.end()));
}

TEST_CASE("a gradient of several micro-batches is summed by micro-batch, and within a micro-batch newest first") {
  const ls::Tensor w = ls::ones({1}, {.requires_grad = true});
  const auto term = [&](int micro_batch, double slope) {
    const ls::random::MicroBatchGuard guard(micro_batch);
    return w * ls::tensor({slope});
  };
  const ls::Tensor late = term(1, 1e8), early = term(0, 1.0), newest = term(1, -1e8);
  ls::sum(ls::cat({late, early, newest})).backward();
  const float want = (1.0f + -1e8f) + 1e8f;  // micro-batch 0, then micro-batch 1's newer and older operation
  CHECK(w.grad().item<float>() == want);
}

TEST_CASE("backward runs each node under the micro-batch that recorded it, and restores the thread's own") {
  struct Ask : ls::autograd::Function<Ask> {
    static ls::Tensor forward(ls::autograd::Context&, const ls::Tensor& x) { return x * 1; }
    static ls::autograd::Gradients backward(ls::autograd::Context&, const ls::Tensor& grad) {
      return {grad * ls::random::current_micro_batch()};
    }
  };
  const ls::Tensor x = ls::ones({1}, {.requires_grad = true});
  ls::Tensor y;
  {
    const ls::random::MicroBatchGuard guard(6);
    y = Ask::apply(x);
  }
  y.backward();
  CHECK(x.grad().item<float>() == 6);
  CHECK(ls::random::current_micro_batch() == 0);
}
