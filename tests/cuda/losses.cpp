// Losses and optimizer steps on cuda:0 compared with the CPU, and the errors for invalid values.
#include "tests/cuda/host_accelerator.h"
#include "tests/support/testing.h"

namespace {

namespace nn = ls::nn;

constexpr Tolerance kLoose{2e-5, 2e-6};

// Compares the loss and its gradient on both devices.
template <class Loss>
void check_loss(const std::string& what, const ls::Tensor& x, const ls::Tensor& target, Loss loss) {
  INFO(what);
  const auto run = [&](const ls::Device& device) {
    ls::Tensor there = x.detach().to(device);
    there.requires_grad_(true);
    const ls::Tensor value = loss(there, target.to(device));
    ls::sum(value * 1.5).backward();
    return std::pair(value.detach().to("cpu"), there.grad().to("cpu"));
  };
  const auto [value, gradient] = run("cpu");
  const auto [value_there, gradient_there] = run("cuda:0");
  check_close(value_there, value, what + ", value", kLoose);
  check_close(gradient_there, gradient, what + ", gradient", kLoose);
}

const nn::Reduction kReductions[] = {nn::Reduction::kMean, nn::Reduction::kSum, nn::Reduction::kNone};

}  // namespace

TEST_CASE("losses of elements") {
  const TestDevices devices;
  const ls::Tensor logits = numbers_between(-4, 4, {6, 50}), shares = numbers_between(0.1, 0.9, {6, 50}, {}, 2);
  for (const nn::Reduction reduction : kReductions) {
    check_loss("bce", ls::sigmoid(logits), shares,
               [&](auto& x, auto y) { return nn::binary_cross_entropy(x, y, {.reduction = reduction}); });
    check_loss("bce with logits", logits, shares, [&](auto& x, auto y) {
      return nn::binary_cross_entropy_with_logits(
          x, y, {.reduction = reduction, .pos_weight = ls::full({50}, 2.5).to(x.device())});
    });
    check_loss("mse", logits, shares, [&](auto& x, auto y) { return nn::mse_loss(x, y, {.reduction = reduction}); });
    check_loss("l1", logits, shares, [&](auto& x, auto y) { return nn::l1_loss(x, y, {.reduction = reduction}); });
  }
}

TEST_CASE("losses over classes: few, many, in images, weighted, smoothed, ignored") {
  const TestDevices devices;
  for (const ls::Shape& shape : {ls::Shape{9, 5}, ls::Shape{4, 300}, ls::Shape{2, 6, 7}}) {
    const ls::Tensor x = numbers_between(-3, 3, shape);
    const ls::Shape samples = shape.size() == 3 ? ls::Shape{shape[0], shape[2]} : ls::Shape{shape[0]};
    ls::Tensor target = (ls::abs(numbers(samples)) * static_cast<double>(shape[1])).to(ls::kInt64);
    target.reshape({-1}).span<std::int64_t>()[1] = -100;
    const ls::Tensor weight = numbers_between(0.5, 2, {shape[1]}, {}, 3);
    for (const nn::Reduction reduction : kReductions) {
      for (const double smoothing : {0.0, 0.2}) {
        check_loss("cross entropy", x, target, [&](auto& scores, auto labels) {
          return nn::cross_entropy(scores, labels, {.reduction = reduction, .label_smoothing = smoothing});
        });
        check_loss("weighted cross entropy", x, target, [&](auto& scores, auto labels) {
          return nn::cross_entropy(
              scores, labels,
              {.reduction = reduction, .label_smoothing = smoothing, .weight = weight.to(scores.device())});
        });
      }
      check_loss("nll", ls::log_softmax(x, 1), target, [&](auto& scores, auto labels) {
        return nn::nll_loss(scores, labels, {.reduction = reduction, .weight = weight.to(scores.device())});
      });
    }
  }
}

TEST_CASE("wrong values are reported when the device is synchronised, with the operation's name and position") {
  const TestDevices devices;
  const ls::Tensor table = ls::ones({5, 2}, {.device = "cuda:0"});
  const std::string index = error_of([&] {
    (void)ls::index_select(table, 0, ls::tensor({1, 7}, {.dtype = ls::kInt64}).to("cuda:0")).to("cpu");
  });
  CHECK(contains(index, "index 7 is outside [0, 5)"));
  CHECK(contains(index, "cuda:0"));
  const std::string label = error_of([&] {
    const ls::Tensor target = ls::tensor({0, 2, 1, 0, 1}, {.dtype = ls::kInt64}).to("cuda:0");
    (void)nn::cross_entropy(table, target).template item<float>();
  });
  CHECK(contains(label, "the target of sample 1 is class 2, expected 0 to 1"));
  const std::string no_classes = error_of([&] {
    const ls::Tensor target = ls::zeros({2}, {.dtype = ls::kInt64, .device = "cuda:0"});
    (void)nn::cross_entropy(ls::zeros({2, 0}, {.device = "cuda:0"}), target).template item<float>();
  });
  CHECK(contains(no_classes, "the target of sample 0 is class 0"));
  const std::string probability =
      error_of([&] { (void)nn::binary_cross_entropy(table * 1.5, ls::zeros_like(table)).template item<float>(); });
  CHECK(contains(probability, "is not a probability"));
  CHECK(ls::sum(table).item<float>() == 10);  // what follows is undisturbed
}

TEST_CASE("random numbers equal the CPU's") {
  const TestDevices devices;
  for (const ls::DType dtype : {ls::kFloat32, ls::kFloat64}) {
    const auto draw = [&](const ls::Device& device) {
      ls::manual_seed(7);
      const ls::TensorOptions options{.dtype = dtype, .device = device};
      return std::vector<ls::Tensor>{ls::rand({1003}, options).to("cpu"), ls::randn({1003}, options).to("cpu")};
    };
    const auto here = draw("cpu"), there = draw("cuda:0");
    CHECK(same_bits(here[0], there[0]));
    check_close(there[1], here[1], "normals", {1e-6, 1e-6});
  }
}
