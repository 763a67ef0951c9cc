// Image layers compared with PyTorch's, and their errors for operands that do not fit.
#include <cmath>
#include <functional>
#include <memory>

#include "support.h"

namespace {

struct Case {
  std::string name;
  std::function<std::unique_ptr<nn::Module>()> make;
};

template <class M, class... Arguments>
std::unique_ptr<nn::Module> layer(Arguments&&... arguments) {
  return std::make_unique<M>(std::forward<Arguments>(arguments)...);
}

// Sums of a thousand products in different orders.
Tolerance allowed(const std::string& tag) { return tag == "f32" ? Tolerance{1e-5, 2e-5} : Tolerance{1e-12, 1e-12}; }

void check_cases(const std::vector<Case>& cases) {
  const ls::StateDict dict = golden("images");
  for (const Case& c : cases) {
    for (const std::string& tag : float_tags()) {
      const std::string prefix = c.name + "." + tag + "/";
      INFO(prefix);
      const auto module = c.make();
      load_case(*module, dict, prefix, tag);
      check_step(*module, dict, prefix, allowed(tag));
    }
  }
}

// Checks two training steps and one in eval mode.
void check_batch_norm(const std::string& name, std::int64_t features, const nn::BatchNorm2dOptions& options) {
  const ls::StateDict dict = golden("images");
  for (const std::string& tag : float_tags()) {
    nn::BatchNorm2d module(features, options);
    load_case(module, dict, name + "." + tag + "/", tag);
    for (const int step : {0, 1, 2}) {
      const std::string prefix = name + "." + tag + "/" + std::to_string(step) + "/";
      INFO(prefix);
      module.train(step < 2);
      check_step(module, dict, prefix, allowed(tag));
      for (const auto& [key, buffer] : module.named_buffers())
        check_close(buffer.tensor(), dict.at(prefix + key), key, tolerance(buffer->dtype()));
    }
  }
}

std::string message(const nn::Module& module, const ls::Shape& shape) {
  return error_of([&] { module(ls::ones(shape)); });
}

}  // namespace

TEST_CASE("Conv2d gives PyTorch's values and gradients") {
  check_cases({
      {"conv2d", [] { return layer<nn::Conv2d>(3, 4, 3); }},
      {"conv2d_no_bias", [] { return layer<nn::Conv2d>(3, 2, 2, nn::Conv2dOptions{.bias = false}); }},
      {"conv2d_stride_padding",
       [] { return layer<nn::Conv2d>(3, 4, 3, nn::Conv2dOptions{.stride = 2, .padding = 1}); }},
      {"conv2d_pairs",
       [] {
         return layer<nn::Conv2d>(2, 3, ls::Size2d{3, 2}, nn::Conv2dOptions{.stride = {2, 1}, .padding = {2, 1}});
       }},
      {"conv2d_dilation",
       [] {
         return layer<nn::Conv2d>(2, 3, 3, nn::Conv2dOptions{.padding = {2, 1}, .dilation = {2, 3}});
       }},
      {"conv2d_groups", [] { return layer<nn::Conv2d>(4, 6, 3, nn::Conv2dOptions{.padding = 1, .groups = 2}); }},
      {"conv2d_depthwise",
       [] { return layer<nn::Conv2d>(3, 3, 3, nn::Conv2dOptions{.stride = 2, .padding = 1, .groups = 3}); }},
      {"conv2d_1x1", [] { return layer<nn::Conv2d>(5, 3, 1); }},
      {"conv2d_whole", [] { return layer<nn::Conv2d>(2, 5, 4); }},
      {"conv2d_many_tiles", [] { return layer<nn::Conv2d>(24, 2, 5, nn::Conv2dOptions{.padding = 2}); }},
  });
}

TEST_CASE("MaxPool2d and AvgPool2d give PyTorch's values and gradients, ties, NaN and -inf included") {
  check_cases({
      {"max_pool2d", [] { return layer<nn::MaxPool2d>(2); }},
      {"max_pool2d_overlap", [] { return layer<nn::MaxPool2d>(3, nn::MaxPool2dOptions{.stride = 2, .padding = 1}); }},
      {"max_pool2d_pairs",
       [] {
         return layer<nn::MaxPool2d>(ls::Size2d{3, 2}, nn::MaxPool2dOptions{.stride = {1, 2}, .padding = {1, 0}});
       }},
      {"max_pool2d_ties", [] { return layer<nn::MaxPool2d>(2, nn::MaxPool2dOptions{.stride = 1}); }},
      {"max_pool2d_nan_and_minus_inf", [] { return layer<nn::MaxPool2d>(2); }},
      {"avg_pool2d", [] { return layer<nn::AvgPool2d>(2); }},
      {"avg_pool2d_overlap", [] { return layer<nn::AvgPool2d>(3, nn::AvgPool2dOptions{.stride = 2, .padding = 1}); }},
      {"avg_pool2d_without_pad",
       [] {
         return layer<nn::AvgPool2d>(3, nn::AvgPool2dOptions{.stride = 2, .padding = 1, .count_include_pad = false});
       }},
      {"avg_pool2d_pairs",
       [] {
         return layer<nn::AvgPool2d>(ls::Size2d{3, 2}, nn::AvgPool2dOptions{.stride = {1, 2}, .padding = {1, 0}});
       }},
  });
}

TEST_CASE("pooling with ceil_mode and dilation gives PyTorch's values and gradients") {
  using Max = nn::MaxPool2dOptions;
  using Avg = nn::AvgPool2dOptions;
  check_cases({
      {"max_pool2d_ceil", [] { return layer<nn::MaxPool2d>(3, Max{.stride = 2, .ceil_mode = true}); }},
      {"max_pool2d_ceil_padding",
       [] { return layer<nn::MaxPool2d>(3, Max{.stride = 2, .padding = 1, .ceil_mode = true}); }},
      {"max_pool2d_ceil_left_out",
       [] { return layer<nn::MaxPool2d>(2, Max{.stride = 3, .padding = 1, .ceil_mode = true}); }},
      {"max_pool2d_ceil_small", [] { return layer<nn::MaxPool2d>(4, Max{.stride = 3, .ceil_mode = true}); }},
      {"max_pool2d_dilation",
       [] {
         return layer<nn::MaxPool2d>(ls::Size2d{3, 2}, Max{.stride = {2, 1}, .padding = 1, .dilation = {2, 3}});
       }},
      {"max_pool2d_dilation_ceil",
       [] { return layer<nn::MaxPool2d>(3, Max{.stride = 2, .padding = 1, .dilation = 2, .ceil_mode = true}); }},
      {"max_pool2d_dilation_minus_inf",
       [] { return layer<nn::MaxPool2d>(2, Max{.stride = 1, .padding = 1, .dilation = 3}); }},
      {"avg_pool2d_ceil", [] { return layer<nn::AvgPool2d>(3, Avg{.stride = 2, .padding = 1, .ceil_mode = true}); }},
      {"avg_pool2d_ceil_without_pad",
       [] {
         return layer<nn::AvgPool2d>(3, Avg{.stride = 2, .padding = 1, .ceil_mode = true, .count_include_pad = false});
       }},
      {"avg_pool2d_ceil_pairs",
       [] {
         return layer<nn::AvgPool2d>(ls::Size2d{4, 2}, Avg{.stride = {3, 2}, .padding = {2, 0}, .ceil_mode = true});
       }},
  });
}

TEST_CASE("BatchNorm2d gives PyTorch's values, gradients and buffers in two steps of training and in eval mode") {
  check_batch_norm("batch_norm", 3, {});
  check_batch_norm("batch_norm_plain", 2, {.affine = false});
  check_batch_norm("batch_norm_options", 3, {.eps = 0.1, .momentum = 0.3});
  check_batch_norm("batch_norm_points", 4, {});
}

TEST_CASE("Conv2d starts within the range of its fan-in, BatchNorm2d as the identity") {
  ls::manual_seed(0);
  const nn::Conv2d conv(8, 50, {3, 4}, {.groups = 2});  // fan-in 4 * 12
  const double bound = 1 / std::sqrt(48.0);
  CHECK(conv.weight->shape() == ls::Shape{50, 4, 3, 4});
  for (const nn::Parameter& p : {conv.weight, conv.bias}) {
    CHECK(ls::max(p).item<double>() <= bound);
    CHECK(ls::max(p).item<double>() > 0.85 * bound);
    CHECK(ls::min(p).item<double>() < -0.85 * bound);
  }
  const nn::BatchNorm2d norm(3);
  CHECK(norm.state_dict().size() == 5);
  CHECK(norm.running_var->to_vector<double>() == std::vector<double>{1, 1, 1});
  CHECK(norm.num_batches_tracked->dtype() == ls::kInt64);
  nn::BatchNorm2d eval(3);
  eval.eval();
  check_close(eval(numbers({2, 3, 2, 2})), numbers({2, 3, 2, 2}), "identity", {1e-5, 1e-5});
}

TEST_CASE("a batch whose variance is undefined is refused in training mode, and no buffer changes") {
  nn::BatchNorm2d norm(2);
  CHECK(message(norm, {1, 2, 1, 1}) ==
        "batch_norm: a variance needs more than one value for each channel while training; x is (1, 2, 1, 1) f32 cpu");
  CHECK(norm.num_batches_tracked->item<std::int64_t>() == 0);
  CHECK(norm.running_mean->to_vector<double>() == std::vector<double>{0, 0});
  norm.eval();
  CHECK(norm(ls::ones({1, 2, 1, 1})).shape() == ls::Shape{1, 2, 1, 1});
}

TEST_CASE("a training batch of no samples keeps the running statistics, and is counted") {
  for (const auto& momentum : {std::optional(0.1), std::optional<double>()}) {
    const nn::BatchNorm2d norm(2, {.momentum = momentum});
    norm(numbers({3, 2, 2, 2}));
    const ls::Tensor mean = norm.running_mean->clone(), var = norm.running_var->clone();
    for (const ls::Shape& shape : {ls::Shape{0, 2, 3, 3}, ls::Shape{4, 2, 0, 3}})
      CHECK(norm(ls::ones(shape)).shape() == shape);
    CHECK(same_bits(*norm.running_mean, mean));
    CHECK(same_bits(*norm.running_var, var));
    CHECK(norm.num_batches_tracked->item<std::int64_t>() == 3);
  }
  // Second derivatives, and f16, take other paths.
  const ls::Tensor x = ls::ones({0, 2, 3}, {.requires_grad = true}), weight = ls::ones({2}, {.requires_grad = true});
  const ls::Tensor y = ls::batch_norm(x, weight, {}, {}, {}, true);
  const auto gradients = ls::autograd::grad({ls::sum(y)}, {x, weight}, {.create_graph = true});
  CHECK(gradients[0].shape() == x.shape());
  CHECK(ls::equal(gradients[1], ls::zeros({2})));
  CHECK(ls::batch_norm(ls::ones({0, 2}, {.dtype = ls::kFloat16}), {}, {}, {}, {}, true).dtype() == ls::kFloat16);
}

TEST_CASE("image layers name both operands that do not fit") {
  CHECK(message(nn::Conv2d(3, 4, 3), {2, 5, 6, 6}) ==
        "conv2d: channels differ: x is (2, 5, 6, 6) f32 cpu, weight is (4, 3, 3, 3) f32 cpu, groups 1");
  CHECK(message(nn::Conv2d(4, 4, 3, {.groups = 2}), {2, 5, 6, 6}) ==
        "conv2d: 2 groups do not divide the channels: x is (2, 5, 6, 6) f32 cpu, weight is (4, 2, 3, 3) f32 cpu");
  CHECK(message(nn::Conv2d(3, 4, 3), {6, 6}) ==
        "conv2d: x must be (images, channels, height, width) or (channels, height, width), got (6, 6) f32 cpu");
  CHECK(message(nn::Conv2d(3, 4, 5, {.padding = {0, 1}}), {1, 3, 4, 4}) ==
        "conv2d: a kernel of 5 x 5 (dilation 1 x 1) does not fit into x, which is (1, 3, 4, 4) f32 cpu, with padding "
        "0 x 1");
  CHECK(message(nn::Conv2d(3, 4, 3, {.stride = {1, 0}}), {1, 3, 4, 4}) ==
        "conv2d: the stride is 1 x 0, expected 1 to 1073741824");
  CHECK(contains(error_of([] { nn::Conv2d(3, 4, 3)(ls::ones({1, 3, 4, 4}, {.dtype = ls::kFloat64})); }), "dtypes"));
  CHECK(error_of([] { nn::Conv2d(3, 4, 3, {.groups = 2}); }) ==
        "Conv2d: 2 groups do not divide the channels, in 3, out 4");
  CHECK(contains(error_of([] { nn::Conv2d(3, 4, {0, 2}); }), "kernel 0 x 2"));
  CHECK(message(nn::MaxPool2d(2, {.padding = 2}), {1, 1, 4, 4}) ==
        "max_pool2d: the padding 2 x 2 is more than half of the kernel, 2 x 2");
  CHECK(message(nn::AvgPool2d(5), {1, 1, 4, 4}) ==
        "avg_pool2d: a kernel of 5 x 5 (dilation 1 x 1) does not fit into x, which is (1, 1, 4, 4) f32 cpu, with "
        "padding 0 x 0");
  CHECK(message(nn::MaxPool2d(4, {.stride = 2, .ceil_mode = true}), {1, 1, 2, 4}) ==
        "max_pool2d: a kernel of 4 x 4 (dilation 1 x 1) does not fit into x, which is (1, 1, 2, 4) f32 cpu, with "
        "padding 0 x 0");
  CHECK(message(nn::MaxPool2d(2, {.stride = 1, .padding = 1, .dilation = 2}), {1, 1, 1, 4}) ==
        "max_pool2d: with padding, the dilation 2 x 2 must not exceed the images' size: x is (1, 1, 1, 4) f32 cpu");
  CHECK(message(nn::MaxPool2d(2, {.dilation = {1, 0}}), {1, 1, 4, 4}) ==
        "max_pool2d: the dilation is 1 x 0, expected 1 to 1073741824");
  CHECK(message(nn::MaxPool2d(2, {.padding = 1}), {1, 1, 0, 4}) ==
        "max_pool2d: the images have no elements: x is (1, 1, 0, 4) f32 cpu");
  CHECK(message(nn::AvgPool2d(2, {.stride = {-1, 2}}), {1, 1, 4, 4}) ==
        "avg_pool2d: the stride is -1 x 2, expected 1 to 1073741824");
  CHECK(message(nn::AvgPool2d(2, {.padding = {0, -1}}), {1, 1, 4, 4}) ==
        "avg_pool2d: the padding is 0 x -1, expected 0 to 1073741824");
  CHECK(message(nn::BatchNorm2d(3), {2, 4, 2, 2}) ==
        "batch_norm: x is (2, 4, 2, 2) f32 cpu, expected (images, 3, height, width)");
  CHECK(contains(error_of([] {
                   ls::batch_norm(ls::ones({2, 3, 2, 2}), ls::ones({4}), {}, {}, {}, true);
                 }),
                 "weight is (4) f32 cpu, expected (3)"));
  CHECK(contains(error_of([] {
                   ls::batch_norm(ls::ones({2, 3, 2, 2}), {}, {}, {}, {}, false);
                 }),
                 "running_mean and running_var are required"));
}

TEST_CASE("batches without images, and convolutions without channels") {
  const ls::Tensor none = ls::zeros({0, 3, 4, 4}, {.requires_grad = true});
  const nn::Conv2d conv(3, 2, 3);
  const ls::Tensor y = nn::MaxPool2d(2)(conv(none));
  CHECK(y.shape() == ls::Shape{0, 2, 1, 1});
  ls::sum(y).backward();
  CHECK(none.grad().shape() == none.shape());
  CHECK(ls::equal(conv.weight->grad(), ls::zeros({2, 3, 3, 3})));
  const ls::Tensor bias = ls::tensor({1.0, 2.0});
  const ls::Tensor nothing_seen = ls::conv2d(ls::zeros({1, 0, 2, 2}), ls::zeros({2, 0, 1, 1}), bias);
  CHECK(nothing_seen.to_vector<double>() == std::vector<double>{1, 1, 1, 1, 2, 2, 2, 2});
}

TEST_CASE("strided operands give the results of contiguous ones") {
  const ls::Tensor x = numbers({2, 5, 3, 6}), w = numbers({4, 3, 2, 2}, {}, 2);
  const ls::Tensor turned = x.transpose(1, 2);  // (2, 3, 5, 6)
  CHECK(same_bits(ls::conv2d(turned, w), ls::conv2d(turned.contiguous(), w)));
  CHECK(same_bits(ls::conv2d(turned, w.transpose(2, 3)), ls::conv2d(turned, w.transpose(2, 3).contiguous())));
  CHECK(same_bits(ls::max_pool2d(turned, 2), ls::max_pool2d(turned.contiguous(), 2)));
  CHECK(same_bits(ls::avg_pool2d(turned, 2), ls::avg_pool2d(turned.contiguous(), 2)));
  CHECK(same_bits(ls::batch_norm(turned, {}, {}, {}, {}, true),
                  ls::batch_norm(turned.contiguous(), {}, {}, {}, {}, true)));
}
