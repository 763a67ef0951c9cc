#include "support/evaluate.h"

namespace samples {

namespace ls = lockstep;

namespace {

// Puts `model` in eval mode while the object exists: batch normalisation then uses its running statistics.
class Evaluating {
 public:
  explicit Evaluating(ls::nn::Module& model) : model_(model), was_training_(model.is_training()) { model_.eval(); }
  ~Evaluating() { model_.train(was_training_); }
  Evaluating(const Evaluating&) = delete;
  Evaluating& operator=(const Evaluating&) = delete;

 private:
  ls::nn::Module& model_;
  bool was_training_;
};

}  // namespace

Score evaluate(ls::nn::Module& model,
               const std::function<ls::Tensor(const ls::Tensor& scores, const ls::Tensor& labels)>& criterion,
               ls::data::DataLoader<>& loader) {
  const ls::NoGradGuard no_grad;
  const Evaluating mode(model);
  const ls::Device device = model.parameters()[0]->device();
  double loss = 0, right = 0, count = 0;
  for (const auto& [x, labels] : loader) {
    const ls::Tensor scores = model(x.to(device)), y = labels.to(device);
    const auto batch = static_cast<double>(y.numel());
    loss += batch * criterion(scores, y).item<double>();
    right += ls::sum((ls::argmax(scores, -1) == y).to(ls::kInt64)).item<double>();
    count += batch;
  }
  return {.loss = loss / count, .accuracy = right / count};
}

}  // namespace samples
