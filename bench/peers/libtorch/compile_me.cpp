// The program that bench/run.cpp compiles: contract program 01 without its data set and loader, written for
// LibTorch.
#include <torch/torch.h>

#include <cstdio>

struct SimpleModel : torch::nn::Module {
  torch::nn::Linear fc{nullptr};
  explicit SimpleModel(int64_t input_dim) { fc = register_module("fc", torch::nn::Linear(input_dim, 1)); }
  torch::Tensor forward(const torch::Tensor& x) { return torch::sigmoid(fc->forward(x)); }
};

int main() {
  torch::manual_seed(0);
  const int64_t n_sample = 100, n_dim = 10;
  torch::Tensor x = torch::randn({n_sample, n_dim});
  torch::Tensor y = torch::randint(0, 2, {n_sample}).to(torch::kFloat32);

  SimpleModel model(n_dim);
  torch::nn::BCELoss criterion;
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.01));
  for (int epoch = 0; epoch < 10; ++epoch) {
    for (int64_t start = 0; start < n_sample; start += 10) {
      torch::Tensor outputs = model.forward(x.slice(0, start, start + 10));
      torch::Tensor loss = criterion(outputs, y.slice(0, start, start + 10).unsqueeze(1));
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
      std::printf("epoch %d, batch %d, loss %.6f\n", epoch, static_cast<int>(start / 10), loss.item<float>());
    }
  }
}
