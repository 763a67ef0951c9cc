// A training step of the MLP 784-512-256-10: ReLU, cross entropy, SGD.
#include "peer.h"

int main() {
  peer::set_up();
  for (const long batch : {32L, 128L, 512L}) {
    torch::nn::Sequential model(torch::nn::Linear(784, 512), torch::nn::ReLU(), torch::nn::Linear(512, 256),
                                torch::nn::ReLU(), torch::nn::Linear(256, 10));
    torch::nn::CrossEntropyLoss criterion;
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01));
    const torch::Tensor x = torch::randn({batch, 784});
    const torch::Tensor y = torch::randint(0, 10, {batch}, torch::kInt64);
    peer::measure(
        "mlp_step_" + std::to_string(batch),
        [&] {
          torch::Tensor loss = criterion(model->forward(x), y);
          optimizer.zero_grad();
          loss.backward();
          optimizer.step();
        },
        2.0);
  }
}
