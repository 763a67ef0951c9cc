// f32 elements through one operation each, and a softmax over rows. Every call allocates its result.
#include "peer.h"

int main() {
  peer::set_up();
  const torch::NoGradGuard no_grad;
  const torch::Tensor a = torch::randn({1'000'000}), b = torch::randn({1'000'000});
  peer::measure("exp_1m", [&] { torch::Tensor c = torch::exp(a); });
  peer::measure("sigmoid_1m", [&] { torch::Tensor c = torch::sigmoid(a); });
  peer::measure("tanh_1m", [&] { torch::Tensor c = torch::tanh(a); });
  peer::measure("add_1m", [&] { torch::Tensor c = a + b; });
  peer::measure("sum_1m", [&] { torch::Tensor c = a.sum(); });

  const torch::Tensor rows = torch::randn({1024, 1024});
  peer::measure("softmax_1024", [&] { torch::Tensor c = torch::softmax(rows, 1); });

  const torch::Tensor few = torch::randn({100'000}), many = torch::randn({4'000'000});
  peer::measure("gelu_100k", [&] { torch::Tensor c = torch::gelu(few); });
  peer::measure("gelu_4m", [&] { torch::Tensor c = torch::gelu(many); });
}
