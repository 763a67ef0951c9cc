#include "support.h"

namespace {

struct Result {
  ls::Tensor loss, grad;
};

Result run(const nn::CrossEntropyLossOptions& options, const ls::Tensor& scores, const ls::Tensor& labels) {
  const ls::Tensor x = scores.clone();
  x.requires_grad_();
  const ls::Tensor loss = nn::cross_entropy(x, labels, options);
  ls::sum(loss * 0.5).backward();
  return {loss.detach(), x.grad()};
}

// Computes the same loss with two functions that have their own tests.
Result run_in_steps(const nn::CrossEntropyLossOptions& options, const ls::Tensor& scores, const ls::Tensor& labels) {
  const ls::Tensor x = scores.clone();
  x.requires_grad_();
  const ls::Tensor loss =
      nn::nll_loss(ls::log_softmax(x, 1), labels, {.reduction = options.reduction, .weight = options.weight});
  ls::sum(loss * 0.5).backward();
  return {loss.detach(), x.grad()};
}

// Few and many classes, samples that do not fill a SIMD packet, an inner dimension, enough elements for several
// threads.
const std::vector<ls::Shape> kShapes = {{1, 1},    {37, 5},     {16, 64},   {20, 65},   {3, 300},
                                        {5, 7, 3}, {2, 90, 17}, {9000, 10}, {700, 150}, {4, 33, 20, 30}};

}  // namespace

TEST_CASE(
    "cross-entropy equals log_softmax and nll_loss for every layout, with the same bits for any number of threads") {
  ls::manual_seed(11);
  const int before = ls::num_threads();
  for (const ls::Shape& shape : kShapes) {
    INFO(shape.to_string());
    const ls::Tensor scores = ls::randn(shape) * 3.0;
    ls::Shape samples = shape;
    samples.erase(1);
    const ls::Tensor labels = ls::randint(0, shape[1], samples), weight = ls::rand({shape[1]}) + 0.1;
    for (const nn::Reduction reduction : {nn::Reduction::kMean, nn::Reduction::kNone}) {
      const nn::CrossEntropyLossOptions options{.reduction = reduction, .weight = weight};
      ls::set_num_threads(1);
      const Result one = run(options, scores, labels);
      const Result steps = run_in_steps(options, scores, labels);
      CHECK(ls::allclose(one.loss, steps.loss, 1e-5, 1e-6));
      CHECK(ls::allclose(one.grad, steps.grad, 1e-4, 0x1p-23));  // p - 1 cancels for a label with p near 1
      for (const int threads : {2, 3}) {
        ls::set_num_threads(threads);
        const Result many = run(options, scores, labels);
        CHECK(same_bits(one.loss, many.loss));
        CHECK(same_bits(one.grad, many.grad));
      }
    }
  }
  ls::set_num_threads(before);
}

TEST_CASE("a sample's loss does not depend on the other samples") {
  ls::manual_seed(12);
  for (const std::int64_t classes : {10, 100}) {
    const ls::Tensor scores = ls::randn({40, classes}), labels = ls::randint(0, classes, {40});
    const nn::CrossEntropyLossOptions each{.reduction = nn::Reduction::kNone};
    const ls::Tensor all = nn::cross_entropy(scores, labels, each);
    for (const std::int64_t first : {0, 1, 15, 39}) {
      const ls::Tensor part = nn::cross_entropy(scores.slice(0, first, 40), labels.slice(0, first, 40), each);
      CHECK(same_bits(part, all.slice(0, first, 40)));
    }
  }
  const ls::Tensor x = ls::rand({100}), y = ls::rand({100});
  const ls::Tensor all = nn::binary_cross_entropy(x, y, {.reduction = nn::Reduction::kNone});
  for (const std::int64_t first : {1, 5, 16, 99}) {
    const ls::Tensor part =
        nn::binary_cross_entropy(x.slice(0, first, 100), y.slice(0, first, 100), {.reduction = nn::Reduction::kNone});
    CHECK(same_bits(part, all.slice(0, first, 100)));
  }
}
