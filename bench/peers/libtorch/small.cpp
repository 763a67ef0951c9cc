// Work dominated by overhead, not arithmetic: a logistic-regression training step and an add of ten elements.
#include "peer.h"

struct LogisticRegression : torch::nn::Module {
  torch::nn::Linear fc{nullptr};
  LogisticRegression() { fc = register_module("fc", torch::nn::Linear(10, 1)); }
  torch::Tensor forward(const torch::Tensor& x) { return torch::sigmoid(fc->forward(x)); }
};

int main() {
  peer::set_up();

  LogisticRegression model;
  torch::nn::BCELoss criterion;
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.01));
  const torch::Tensor x = torch::randn({10, 10});
  const torch::Tensor y = torch::randint(0, 2, {10, 1}).to(torch::kFloat32);
  peer::measure("logreg_step", [&] {
    torch::Tensor loss = criterion(model.forward(x), y);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  });

  const torch::NoGradGuard no_grad;
  const torch::Tensor a = torch::randn({10}), b = torch::randn({10});
  peer::measure("add10", [&] { torch::Tensor c = a + b; });
}
