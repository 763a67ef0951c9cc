// Causal attention, forward and backward: 8 heads of dimension 64, by tiles and as a composition of operations.
#include <lockstep/lockstep.h>

#include <cmath>
#include <limits>
#include <string>

#include "support/timing.h"

namespace ls = lockstep;

namespace {

ls::Tensor composed(const ls::Tensor& q, const ls::Tensor& k, const ls::Tensor& v, const ls::Tensor& mask) {
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
  return ls::matmul(ls::softmax(ls::matmul(q * scale, k.transpose(-1, -2)) + mask, -1), v);
}

}  // namespace

int main() {
  bench::start_a_thread_once();
  ls::set_num_threads(1);
  ls::manual_seed(0);

  for (const std::int64_t time : {256, 2048}) {
    const ls::Shape shape{1, 8, time, 64};
    const ls::Tensor q = ls::randn(shape, {.requires_grad = true}), k = ls::randn(shape, {.requires_grad = true}),
                     v = ls::randn(shape, {.requires_grad = true}), grad = ls::randn(shape);
    const ls::Tensor mask =
        ls::where(ls::triu(ls::ones({time, time}), 1) > 0, -std::numeric_limits<double>::infinity(), 0.0);
    const auto measure = [&](const std::string& name, const auto& attention) {
      bench::measure(name + "_" + std::to_string(time), [&] {
        attention().backward(grad);
        for (const ls::Tensor* x : {&q, &k, &v}) x->set_grad({});
      });
    };
    measure("attention", [&] { return ls::scaled_dot_product_attention(q, k, v, {.is_causal = true}); });
    measure("composed_attention", [&] { return composed(q, k, v, mask); });
  }
}
