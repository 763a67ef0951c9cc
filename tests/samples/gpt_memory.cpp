// Bytes of a recomputed GPT: the boundaries of its blocks and the results of one block.
#include "support/gpt.h"
#include "tests/support/testing.h"

namespace {

constexpr std::int64_t kBatch = 4, kContext = 32, kWidth = 64;

struct Bytes {
  double after_forward, peak;  // above those before forward
};

// Measures the second step: all gradients are allocated before it.
Bytes bytes_of_step(std::int64_t layers, bool recompute) {
  const samples::Gpt model(
      16, {.layers = layers, .heads = 4, .width = kWidth, .context = kContext, .dropout = 0.1, .recompute = recompute});
  const ls::Tensor ids = ls::randint(16, {kBatch, kContext + 1});
  Bytes bytes{};
  for (int step = 0; step < 2; ++step) {
    const std::int64_t before = ls::allocator_stats().allocated_bytes;
    ls::reset_peak_bytes();
    const ls::Tensor loss =
        samples::next_character_loss(model(ids.slice(1, 0, kContext)), ids.slice(1, 1, kContext + 1));
    bytes.after_forward = static_cast<double>(ls::allocator_stats().allocated_bytes - before);
    loss.backward();
    bytes.peak = static_cast<double>(ls::allocator_stats().peak_bytes - before);
  }
  return bytes;
}

}  // namespace

TEST_CASE("with recomputation each block adds its boundary to the activations, and nothing else") {
  ls::set_num_threads(1);
  const Bytes few = bytes_of_step(2, true), many = bytes_of_step(34, true), kept = bytes_of_step(2, false);
  constexpr double kBoundaries = 32 * 4.0 * kBatch * kContext * kWidth;
  CHECK(many.after_forward - few.after_forward == doctest::Approx(kBoundaries).epsilon(0.02));
  CHECK(many.peak - few.peak == doctest::Approx(kBoundaries).epsilon(0.02));
  CHECK(kept.after_forward > 5 * few.after_forward);
}
