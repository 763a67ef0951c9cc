// Causal attention, forward and backward: 8 heads of dimension 64, by tiles and as a composition of operations; and the peak of
// allocated bytes.
#include <lockstep/lockstep.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <string>

#include "support/timing.h"

namespace ls = lockstep;

namespace {

constexpr std::int64_t kHeads = 8, kDim = 64;

struct Operands {
  ls::Tensor q, k, v, grad;
  explicit Operands(std::int64_t time) {
    for (ls::Tensor* x : {&q, &k, &v, &grad}) *x = ls::randn({1, kHeads, time, kDim});
    for (ls::Tensor* x : {&q, &k, &v}) x->requires_grad_();
  }
  ls::Tensor by_tiles() const { return ls::scaled_dot_product_attention(q, k, v, {.is_causal = true}); }
  ls::Tensor composed(const ls::Tensor& mask) const {
    const double scale = 1 / std::sqrt(static_cast<double>(kDim));
    return ls::matmul(ls::softmax(ls::matmul(q * scale, k.transpose(-1, -2)) + mask, -1), v);
  }
  void clear() const {
    for (const ls::Tensor* x : {&q, &k, &v}) x->set_grad({});
  }
};

void measure_time(std::int64_t time) {
  const Operands in(time);
  const ls::Tensor mask =
      ls::where(ls::triu(ls::ones({time, time}), 1) > 0, -std::numeric_limits<double>::infinity(), 0.0);
  const auto measure = [&](const std::string& name, const auto& attention) {
    bench::measure(name + std::to_string(time), [&] {
      attention().backward(in.grad);
      in.clear();
    });
  };
  measure("attention_", [&] { return in.by_tiles(); });
  measure("composed_attention_", [&] { return in.composed(mask); });
}

void print_megabytes(const std::string& name, std::int64_t numbers) {
  std::printf("{\"name\": \"%s\", \"mb\": %.4f}\n", name.c_str(), 4e-6 * static_cast<double>(numbers));
}

// The peak of one forward and backward, operands included, and its closed form: q, k, v, out and the gradients of the four, a
// log-sum-exp for each query, and for the one thread a tile's workspace: seven tiles of 64 queries or keys, three of scores,
// and the gradients of one head's keys and values.
void measure_memory(std::int64_t time) {
  const std::string name = "attention_memory_" + std::to_string(time);
  if (!bench::wanted(name)) return;
  constexpr std::int64_t kTile = 64;
  const std::int64_t before = ls::allocator_stats().allocated_bytes;
  ls::reset_peak_bytes();
  const Operands in(time);
  in.by_tiles().backward(in.grad);
  print_megabytes(name, (ls::allocator_stats().peak_bytes - before) / 4);
  print_megabytes("formula_" + name, kHeads * time * (8 * kDim + 1) + kTile * (7 * kDim + 3 * kTile) + 2 * time * kDim);
}

}  // namespace

int main() {
  bench::start_a_thread_once();
  ls::set_num_threads(bench::threads());
  ls::manual_seed(0);
  if (bench::threads() == 1) measure_memory(4096);
  for (const std::int64_t time : {256, 2048, 4096}) measure_time(time);
}
