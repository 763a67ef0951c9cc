// Each training step by the optimizer and by its formula; compares the bits.
#include <lockstep/lockstep.h>

#include <cstdio>

namespace ls = lockstep;

int main() {
  ls::manual_seed(0);
  const ls::Tensor x = ls::randn({8, 3}), y = ls::randn({8, 1});  // a batch: 8 samples, 3 features
  ls::nn::Linear model(3, 1);
  ls::nn::MSELoss criterion;
  ls::optim::SGD optimizer(model.parameters(), {.lr = 0.1});

  for (int step = 1; step <= 3; ++step) {
    optimizer.zero_grad();
    std::printf("step %d: after zero_grad the gradient is %s\n", step,
                model.weight->grad().defined() ? "defined" : "undefined");
    const ls::Tensor loss = criterion(model(x), y);
    loss.backward();
    const ls::Tensor by_hand = model.weight->detach() - 0.1 * model.weight->grad();
    optimizer.step();
    std::printf("        loss %.4f, gradient of shape %s, by hand: %s\n", loss.item<double>(),
                model.weight->grad().shape().to_string().c_str(),
                ls::equal(by_hand, model.weight->detach()) ? "bitwise identical" : "different");
  }

  optimizer.zero_grad();
  criterion(model(x), y).backward();
  const double once = model.weight->grad().norm().item<double>();
  criterion(model(x), y).backward();  // no zero_grad before it
  std::printf("after a second backward the gradient is %.2f times as large\n",
              model.weight->grad().norm().item<double>() / once);
}
