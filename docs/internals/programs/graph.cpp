// The graph of a loss, the order in which backward runs it, and the gradients.
#include <lockstep/lockstep.h>

#include <cstdio>
#include <string>

namespace ls = lockstep;

// Registers a hook that prints the gradient when it is complete.
void print_when_complete(const ls::Tensor& t, const std::string& name) {
  t.register_hook([name](const ls::Tensor& gradient) {
    std::printf("  d loss / d %s = %s\n", name.c_str(), gradient.to_string().c_str());
    return ls::Tensor();  // the gradient does not change
  });
}

int main() {
  const ls::Tensor w = ls::tensor({3.0f}, {.requires_grad = true});
  const ls::Tensor b = ls::tensor({1.0f}, {.requires_grad = true});
  const ls::Tensor x = ls::tensor({2.0f});

  const ls::Tensor product = w * x;
  const ls::Tensor y = product + b;
  const ls::Tensor loss = y * y + w;  // w is used twice
  std::printf("%s\n", ls::autograd::to_dot(loss).c_str());

  print_when_complete(y, "y");
  print_when_complete(product, "(w x)");
  print_when_complete(w, "w");
  print_when_complete(b, "b");
  std::printf("backward:\n");
  loss.backward();
}
