#include "support/fashion_mnist.h"

#include <filesystem>

namespace samples::fashion_mnist {

namespace {

// While it lives, `model` is in eval mode: batch normalisation takes its running statistics instead of the batch's.
class Evaluating {
 public:
  explicit Evaluating(ls::nn::Module& model) : model_(model) { model_.eval(); }
  ~Evaluating() { model_.train(); }
  Evaluating(const Evaluating&) = delete;
  Evaluating& operator=(const Evaluating&) = delete;

 private:
  ls::nn::Module& model_;
};

}  // namespace

Score evaluate(ls::nn::Module& model, const ls::nn::CrossEntropyLoss& criterion, ls::data::DataLoader<>& loader) {
  const ls::NoGradGuard no_grad;
  const Evaluating mode(model);
  const ls::Device device = model.parameters()[0]->device();
  double loss = 0, right = 0, rows = 0;
  for (const auto& [x, labels] : loader) {
    const ls::Tensor scores = model(x.to(device)), y = labels.to(device);
    const auto batch = static_cast<double>(x.size(0));
    loss += batch * criterion(scores, y).item<double>();
    right += ls::sum((ls::argmax(scores, 1) == y).to(ls::kInt64)).item<double>();
    rows += batch;
  }
  return {.loss = loss / rows, .accuracy = right / rows};
}

std::shared_ptr<ls::data::IdxDataset> open(const std::string& folder, const std::string& name) {
  const auto images = std::filesystem::path(folder) / (name + "-images-idx3-ubyte.gz");
  const auto labels = std::filesystem::path(folder) / (name + "-labels-idx1-ubyte.gz");
  if (!std::filesystem::exists(images)) {
    throw ls::IoError(images.string() + " is not there; on Debian and Ubuntu: apt-get install dataset-fashion-mnist\n" +
                      "Files from elsewhere, of the same names, are found with --data FOLDER");
  }
  // Mean and standard deviation of the training pixels: inputs around 0 train faster.
  return std::make_shared<ls::data::IdxDataset>(images.string(), labels.string(),
                                                ls::data::IdxOptions{.mean = 0.286, .std = 0.353});
}

}  // namespace samples::fashion_mnist
