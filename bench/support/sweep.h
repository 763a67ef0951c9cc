// The rows of the sweep: operations over sizes, forward and backward. One source for Lockstep and for LibTorch, whose
// names are the same: a program includes its framework, names it `fw`, and defines what is spelt differently, `spelt`.
#pragma once

#include <string>
#include <vector>

#include "support/timing.h"

namespace sweep {

using Tensor = fw::Tensor;

// A row for 1,000 elements, 100,000 and 4 million.
template <class Op>
void sizes(const std::string& name, Op op) {
  constexpr std::pair<const char*, std::int64_t> kSizes[] = {{"_1k", 1'000}, {"_100k", 100'000}, {"_4m", 4'000'000}};
  for (const auto& [suffix, count] : kSizes) {
    if (!bench::wanted(name + suffix)) continue;
    const Tensor a = fw::rand({count}) + 0.1, b = fw::rand({count}) + 0.1;
    bench::measure(
        name + suffix, [&] { op(a, b); }, 0.3);
  }
}

// A row for forward, and one for forward and backward of the sum with respect to all `inputs`.
template <class Op>
void both(const std::string& name, std::vector<Tensor> inputs, Op op) {
  {
    const fw::NoGradGuard no_grad;
    bench::measure(
        name, [&] { op(inputs); }, 0.3);
  }
  for (Tensor& each : inputs) {
    if (each.is_floating_point()) each.requires_grad_(true);
  }
  bench::measure(
      name + "_backward",
      [&] {
        for (Tensor& each : inputs) spelt::clear_grad(each);
        op(inputs).sum().backward();
      },
      0.3);
}

inline void pointwise() {
  const fw::NoGradGuard no_grad;
  using T = const Tensor&;
  sizes("add", [](T a, T b) { return a + b; });
  sizes("add_scalar", [](T a, T) { return a + 1.5; });
  sizes("mul", [](T a, T b) { return a * b; });
  sizes("div", [](T a, T b) { return a / b; });
  sizes("add_in_place", [](T a, T b) { Tensor(a).add_(b, 1e-9); });
  sizes("exp", [](T a, T) { return fw::exp(a); });
  sizes("log", [](T a, T) { return fw::log(a); });
  sizes("sqrt", [](T a, T) { return fw::sqrt(a); });
  sizes("sin", [](T a, T) { return fw::sin(a); });
  sizes("erf", [](T a, T) { return fw::erf(a); });
  sizes("pow", [](T a, T b) { return fw::pow(a, b); });
  sizes("log1p", [](T a, T) { return fw::log1p(a); });
  sizes("rsqrt", [](T a, T) { return fw::rsqrt(a); });
  sizes("square", [](T a, T) { return fw::square(a); });
  sizes("maximum", [](T a, T b) { return fw::maximum(a, b); });
  sizes("atan2", [](T a, T b) { return fw::atan2(a, b); });
  sizes("tanh", [](T a, T) { return fw::tanh(a); });
  sizes("sigmoid", [](T a, T) { return fw::sigmoid(a); });
  sizes("relu", [](T a, T) { return fw::relu(a); });
  sizes("gelu", [](T a, T) { return fw::gelu(a); });
  sizes("silu", [](T a, T) { return fw::silu(a); });
  sizes("leaky_relu", [](T a, T) { return fw::leaky_relu(a, 0.01); });
  sizes("elu", [](T a, T) { return fw::elu(a); });
  sizes("mish", [](T a, T) { return fw::mish(a); });
  sizes("softplus", [](T a, T) { return fw::softplus(a); });
  sizes("clamp", [](T a, T) { return fw::clamp(a, 0.3, 0.7); });
  sizes("compare", [](T a, T b) { return a > b; });
  sizes("where", [](T a, T b) { return fw::where(a > b, a, b); });
  sizes("masked_fill", [](T a, T b) { return fw::masked_fill(a, a > b, 0.0); });
  sizes("to_f64", [](T a, T) { return a.to(fw::kFloat64); });
  sizes("dropout", [](T a, T) { return fw::dropout(a, 0.1, true); });
  sizes("broadcast", [](T a, T b) { return a.view({-1, 1000}) + b.view({-1, 1000}).narrow(0, 0, 1); });
}

// With backward.
inline void derivatives() {
  const auto row = [](const std::string& name, auto op) {
    both(name, {fw::rand({512, 1000}), fw::rand({512, 1000})}, [&](auto& in) { return op(in[0], in[1]); });
  };
  using T = const Tensor&;
  row("add_512k", [](T a, T b) { return a + b; });
  row("mul_512k", [](T a, T b) { return a * b; });
  row("div_512k", [](T a, T b) { return a / b; });
  row("exp_512k", [](T a, T) { return fw::exp(a); });
  row("tanh_512k", [](T a, T) { return fw::tanh(a); });
  row("sigmoid_512k", [](T a, T) { return fw::sigmoid(a); });
  row("relu_512k", [](T a, T) { return fw::relu(a); });
  row("gelu_512k", [](T a, T) { return fw::gelu(a); });
  row("silu_512k", [](T a, T) { return fw::silu(a); });
  row("softmax_512k", [](T a, T) { return fw::softmax(a, 1); });
  row("log_softmax_512k", [](T a, T) { return fw::log_softmax(a, 1); });
  row("mean_rows_512k", [](T a, T) { return a.mean({1}); });
  row("var_512k", [](T a, T) { return fw::var(a); });
  row("where_512k", [](T a, T b) { return fw::where(a > b, a, b); });
  row("bias_512k", [](T a, T b) { return a + b.narrow(0, 0, 1); });
  row("cat_512k", [](T a, T b) { return fw::cat({a, b}, 1); });
}

inline void reductions() {
  const fw::NoGradGuard no_grad;
  using T = const Tensor&;
  sizes("sum", [](T a, T) { return a.sum(); });
  sizes("max", [](T a, T) { return fw::max(a); });
  sizes("argmax", [](T a, T) { return fw::argmax(a); });
  sizes("norm", [](T a, T) { return fw::norm(a); });
  sizes("mean", [](T a, T) { return a.mean(); });
  sizes("prod", [](T a, T) { return fw::prod(a); });
  sizes("std", [](T a, T) { return fw::std(a); });
  sizes("all", [](T a, T) { return (a > 0).all(); });
  sizes("max_rows", [](T a, T) { return fw::max(a.view({-1, 1000}), 1); });
  sizes("amax_columns", [](T a, T) { return fw::amax(a.view({-1, 1000}), {0}); });
  sizes("logsumexp", [](T a, T) { return fw::logsumexp(a.view({-1, 1000}), {1}); });
  sizes("sum_rows", [](T a, T) { return a.view({-1, 1000}).sum({1}); });
  sizes("sum_columns", [](T a, T) { return a.view({-1, 1000}).sum({0}); });
  sizes("var_rows", [](T a, T) { return fw::var(a.view({-1, 1000}), {1}); });
  sizes("cumsum", [](T a, T) { return fw::cumsum(a.view({-1, 1000}), 1); });
  sizes("softmax", [](T a, T) { return fw::softmax(a.view({-1, 1000}), 1); });
  sizes("log_softmax", [](T a, T) { return fw::log_softmax(a.view({-1, 1000}), 1); });
  const Tensor rows = fw::rand({256, 1000});
  bench::measure(
      "sort_256", [&] { fw::sort(rows, 1); }, 0.3);
  bench::measure(
      "topk_256", [&] { fw::topk(rows, 10, 1); }, 0.3);
}

inline void memory() {
  const fw::NoGradGuard no_grad;
  using T = const Tensor&;
  sizes("clone", [](T a, T) { return a.clone(); });
  sizes("cat", [](T a, T b) { return fw::cat({a, b}); });
  const Tensor x = fw::rand({1024, 1024}), table = fw::rand({10'000, 256}), image = fw::rand({32, 64, 28, 28});
  const Tensor ids = fw::randint(0, 10'000, {4096}), columns = fw::randint(0, 1024, {1024, 256});
  bench::measure(
      "transpose_1024", [&] { x.t().contiguous(); }, 0.3);
  bench::measure(
      "permute_image",
      [&] {
        image.permute({0, 2, 3, 1}).contiguous();
      },
      0.3);
  bench::measure(
      "index_select", [&] { fw::index_select(table, 0, ids); }, 0.3);
  bench::measure(
      "gather", [&] { fw::gather(x, 1, columns); }, 0.3);
  const Tensor weights = fw::rand({4096, 256});
  bench::measure(
      "index_add", [&] { fw::index_add(table, 0, ids, weights); }, 0.3);
  bench::measure(
      "scatter_add", [&] { fw::scatter_add(x, 1, columns, x); }, 0.3);
  bench::measure(
      "masked_select", [&] { fw::masked_select(x, x > 0.5); }, 0.3);
  bench::measure(
      "nonzero", [&] { fw::nonzero(x > 0.9); }, 0.3);
  bench::measure(
      "flip", [&] { fw::flip(x, {1}); }, 0.3);
  bench::measure(
      "roll", [&] { fw::roll(x, {3}, {1}); }, 0.3);
  bench::measure(
      "stack",
      [&] {
        fw::stack({x, x, x}, 1);
      },
      0.3);
  bench::measure(
      "rand_1024",
      [&] {
        fw::rand({1024, 1024});
      },
      0.3);
  bench::measure(
      "randn_1024",
      [&] {
        fw::randn({1024, 1024});
      },
      0.3);
  bench::measure(
      "randint_1024",
      [&] {
        fw::randint(0, 100, {1024, 1024});
      },
      0.3);
  bench::measure(
      "randperm_100k", [&] { fw::randperm(100'000); }, 0.3);
  bench::measure(
      "arange_100k", [&] { fw::arange(100'000); }, 0.3);
  bench::measure(
      "zeros_1024",
      [&] {
        fw::zeros({1024, 1024});
      },
      0.3);
  bench::measure(
      "tril_1024", [&] { fw::tril(x); }, 0.3);
}

inline void products() {
  for (const std::int64_t n : {16, 64, 256, 1024})
    both("matmul_" + std::to_string(n), {fw::rand({n, n}), fw::rand({n, n})},
         [](auto& in) { return fw::matmul(in[0], in[1]); });
  both("bmm_64_x_64", {fw::rand({64, 64, 64}), fw::rand({64, 64, 64})}, [](auto& in) { return fw::bmm(in[0], in[1]); });
  for (const std::int64_t rows : {1, 8, 64, 512})
    both("linear_" + std::to_string(rows) + "_x_768", {fw::rand({rows, 768}), fw::rand({768, 768}), fw::rand({768})},
         [](auto& in) { return spelt::linear(in[0], in[1], in[2]); });
  both("linear_32_x_784_to_10", {fw::rand({32, 784}), fw::rand({10, 784}), fw::rand({10})},
       [](auto& in) { return spelt::linear(in[0], in[1], in[2]); });
  both("attention_8_x_256_x_64", {fw::rand({1, 8, 256, 64}), fw::rand({1, 8, 256, 64}), fw::rand({1, 8, 256, 64})},
       [](auto& in) { return fw::scaled_dot_product_attention(in[0], in[1], in[2]); });
}

inline void layers() {
  both("layer_norm_512_x_768", {fw::rand({512, 768}), fw::rand({768}), fw::rand({768})},
       [](auto& in) { return fw::layer_norm(in[0], {768}, in[1], in[2]); });
  const Tensor ids = fw::randint(0, 10'000, {512});
  both("embedding", {fw::rand({10'000, 256})}, [&](auto& in) { return spelt::embedding(ids, in[0]); });
  const Tensor classes = fw::randint(0, 1000, {256});
  both("cross_entropy_256_x_1000", {fw::rand({256, 1000})},
       [&](auto& in) { return spelt::cross_entropy(in[0], classes); });
  both("bce_100k", {fw::rand({100'000}), fw::rand({100'000})}, [](auto& in) { return spelt::bce(in[0], in[1]); });
  both("bce_with_logits_100k", {fw::rand({100'000}), fw::rand({100'000})},
       [](auto& in) { return spelt::bce_with_logits(in[0], in[1]); });
  both("l1_loss_100k", {fw::rand({100'000}), fw::rand({100'000})},
       [](auto& in) { return spelt::l1_loss(in[0], in[1]); });
  both("smooth_l1_loss_100k", {fw::rand({100'000}), fw::rand({100'000})},
       [](auto& in) { return spelt::smooth_l1_loss(in[0], in[1]); });
  both("mse_loss_100k", {fw::rand({100'000}), fw::rand({100'000})},
       [](auto& in) { return spelt::mse_loss(in[0], in[1]); });
  struct Convolution {
    const char* name;
    std::int64_t images, in, size, out, kernel, stride;
  };
  for (const Convolution& c : std::initializer_list<Convolution>{{"conv_8_x_3_x_64", 8, 3, 64, 16, 3, 1},
                                                                 {"conv_32_x_1_x_28", 32, 1, 28, 32, 3, 1},
                                                                 {"conv_16_x_32_x_28", 16, 32, 28, 64, 3, 1},
                                                                 {"conv_16_x_128_x_14", 16, 128, 14, 128, 3, 1},
                                                                 {"conv_8_x_64_x_56_stride_2", 8, 64, 56, 128, 3, 2},
                                                                 {"conv_8_x_256_x_14_kernel_1", 8, 256, 14, 256, 1, 1}})
    both(c.name, {fw::rand({c.images, c.in, c.size, c.size}), fw::rand({c.out, c.in, c.kernel, c.kernel})},
         [&](auto& in) { return spelt::conv2d(in[0], in[1], c.stride, c.kernel / 2); });
  const Tensor image = fw::rand({16, 64, 28, 28});
  both("max_pool", {image}, [](auto& in) { return fw::max_pool2d(in[0], 2); });
  both("avg_pool", {image}, [](auto& in) { return fw::avg_pool2d(in[0], 2); });
  both("batch_norm", {image, fw::rand({64}), fw::rand({64})},
       [](auto& in) { return spelt::batch_norm(in[0], in[1], in[2]); });
  both("relu_image", {image}, [](auto& in) { return fw::relu(in[0]); });
}

inline void optimizers() {
  std::vector<spelt::Parameter> parameters;
  for (int i = 0; i < 20; ++i) {
    parameters.push_back(spelt::Parameter(fw::rand({50'000}).requires_grad_()));
    const Tensor& values = parameters.back();
    values.sum().backward();
  }
  fw::optim::SGD sgd(parameters, spelt::sgd_options());
  bench::measure(
      "sgd_1m", [&] { sgd.step(); }, 0.3);
  fw::optim::Adam adam(parameters, spelt::adam_options());
  bench::measure(
      "adam_1m", [&] { adam.step(); }, 0.3);
  fw::optim::AdamW adam_w(parameters, spelt::adam_w_options());
  bench::measure(
      "adam_w_1m", [&] { adam_w.step(); }, 0.3);
  bench::measure(
      "clip_grad_norm_1m", [&] { spelt::clip_grad_norm(parameters); }, 0.3);
}

inline void rows() {
  pointwise();
  derivatives();
  reductions();
  memory();
  products();
  layers();
  optimizers();
}

}  // namespace sweep
