// Operations on images have the same bits at any offset of their operands, and with any number of threads.
#include "lockstep/tensor/ops/image_ops_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"
#include "tests/tensor/same_bits.h"

namespace {

using ls::Shape;
using ls::Size2d;

// Convolution and all its gradients: operands x, weight, gradient, bias.
Table convolution(const ls::raw::ConvolutionOptions& options) {
  return {{"conv2d", [=](const Tensors& in) {
             const ls::Tensor &x = in[0], &weight = in[1], &grad = in[2], &bias = in[3];
             const ls::Tensor by_weight = ls::raw::empty(weight.shape(), weight.options());
             ls::raw::conv2d_backward_weight(grad, x, by_weight, options);
             return Tensors{ls::raw::conv2d(x, weight, bias, options), ls::raw::conv2d(x, weight, {}, options),
                            ls::raw::conv2d_backward_input(grad, weight, x.shape(), options), by_weight};
           }}};
}

void check_convolution(const Shape& x, const Shape& weight, const ls::raw::ConvolutionOptions& options) {
  for (const ls::DType dtype : both) {
    const Shape out = ls::raw::conv2d(ls::zeros(x), ls::zeros(weight), {}, options).shape();
    check_table(convolution(options), [&](double, double) {
      return Tensors{numbers(x, {.dtype = dtype}), numbers(weight, {.dtype = dtype}, 2),
                     numbers(out, {.dtype = dtype}, 3), numbers({weight[0]}, {.dtype = dtype}, 4)};
    });
  }
}

Table pooling(const ls::raw::PoolingOptions& options) {
  return {{"pooling", [=](const Tensors& in) {
             const ls::Tensor& x = in[0];
             const auto [largest, index] = ls::raw::max_pool2d(x, options);
             Tensors out = {largest, index, ls::raw::max_pool2d_backward(largest, index, x.shape(), options)};
             for (const bool include : {false, true}) {
               out.push_back(ls::raw::avg_pool2d(x, options, include));
               out.push_back(ls::raw::avg_pool2d_backward(out.back(), x.shape(), options, include));
             }
             return out;
           }}};
}

Table batch_norm() {
  return {{"batch_norm", [](const Tensors& in) {
             const ls::Tensor &x = in[0], &grad = in[1], &weight = in[2], &bias = in[3];
             const ls::Tensor mean = ls::zeros(weight.shape(), weight.options()), var = mean.clone(),
                              by_weight = mean.clone(), by_bias = mean.clone();
             const auto y = ls::raw::batch_norm(x, weight, bias, mean, var, 0.1, 1e-5);
             const ls::Tensor by_x = ls::raw::batch_norm_backward(grad, x, weight, y.statistics, by_weight, by_bias);
             return Tensors{
                 y.out, y.statistics, mean,    var,
                 by_x,  by_weight,    by_bias, ls::raw::batch_norm_backward(grad, x, {}, y.statistics, {}, {})};
           }}};
}

}  // namespace

TEST_CASE("convolution and its gradients: the same bits at every offset and with any threads") {
  check_convolution({1, 1, 3, 3}, {1, 1, 2, 2}, {});
  check_convolution({3, 2, 7, 5}, {4, 2, 3, 3}, {.padding = 1});
  check_convolution({5, 4, 9, 11}, {6, 2, 3, 2},
                    {.stride = {2, 1}, .padding = {1, 0}, .dilation = {1, 2}, .groups = 2});
  check_convolution({20, 8, 16, 15}, {9, 8, 3, 3}, {.padding = 1});    // the threads share the images
  check_convolution({2, 64, 24, 27}, {16, 64, 5, 5}, {.padding = 2});  // in several tiles
  check_convolution({5, 32, 14, 14}, {64, 32, 3, 3}, {.padding = 1});  // channels in lanes
  check_convolution({33, 6, 14, 14}, {6, 1, 3, 3}, {.padding = 1, .groups = 6});
}

TEST_CASE("pooling and its gradients: the same bits at every offset and with any threads") {
  for (const Shape& shape : {Shape{1, 1, 3, 3}, Shape{2, 3, 7, 9}, Shape{4, 5, 50, 67}}) {
    for (const ls::raw::PoolingOptions& options : {ls::raw::PoolingOptions{2, 2, 0},
                                                   {3, 2, 1},
                                                   {Size2d(3, 2), Size2d(1, 2), Size2d(1, 0)},
                                                   {3, 2, 1, 1, true}}) {
      for (const ls::DType dtype : both)
        check_table(pooling(options), [&](double, double) { return Tensors{numbers(shape, {.dtype = dtype})}; });
    }
  }
}

TEST_CASE("batch normalisation and its gradients: the same bits at every offset and with any threads") {
  for (const Shape& shape :
       {Shape{2, 3}, Shape{2, 3, 5, 5}, Shape{9, 7, 33, 35}, Shape{70000, 2}, Shape{3, 2, 200, 90}}) {
    for (const ls::DType dtype : both) {
      check_table(batch_norm(), [&](double, double) {
        return Tensors{numbers(shape, {.dtype = dtype}), numbers(shape, {.dtype = dtype}, 2),
                       numbers({shape[1]}, {.dtype = dtype}, 3), numbers({shape[1]}, {.dtype = dtype}, 4)};
      });
    }
  }
}
