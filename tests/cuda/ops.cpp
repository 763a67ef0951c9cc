// Every operation on cuda:0 compared with the CPU: values and gradients.
#include <functional>

#include "tests/cuda/host_accelerator.h"
#include "tests/support/testing.h"

namespace {

using Inputs = std::vector<ls::Tensor>;
using Function = std::function<ls::Tensor(const Inputs&)>;

struct Result {
  ls::Tensor value;
  Inputs gradients;
};

Result run(const Function& function, const Inputs& inputs, const ls::Device& device) {
  Inputs there;
  for (const ls::Tensor& input : inputs) {
    there.push_back(input.detach().to(device));
    if (input.is_floating_point()) there.back().requires_grad_(true);
  }
  Result out;
  ls::Tensor value = function(there);
  CHECK(value.device() == device);
  out.value = value.detach().to("cpu");
  if (!value.requires_grad()) return out;
  // A weighted sum, so that the elements' gradients differ.
  const ls::Tensor weights = numbers(value.shape(), {.dtype = value.dtype()}, 77).to(device);
  ls::sum(value * weights).backward();
  for (const ls::Tensor& input : there) {
    if (input.grad().defined()) out.gradients.push_back(input.grad().to("cpu"));
  }
  return out;
}

void check(const std::string& what, const Inputs& inputs, const Function& function,
           std::optional<Tolerance> tolerance = {}) {
  INFO(what);
  const TestDevices devices;
  const Result here = run(function, inputs, "cpu"), there = run(function, inputs, "cuda:0");
  const auto compare = [&](const ls::Tensor& have, const ls::Tensor& want, const std::string& part) {
    const Tolerance usual = want.dtype() == ls::kFloat32 ? Tolerance{2e-5, 2e-5} : Tolerance{1e-11, 1e-11};
    check_close(have, want, what + ", " + part, want.is_floating_point() ? tolerance.value_or(usual) : Tolerance{});
  };
  compare(there.value, here.value, "value");
  REQUIRE(there.gradients.size() == here.gradients.size());
  for (std::size_t i = 0; i < here.gradients.size(); ++i)
    compare(there.gradients[i], here.gradients[i], "gradient " + std::to_string(i));
}

ls::Tensor values(const ls::Shape& shape, double low, double high, ls::DType dtype, std::uint32_t salt = 1) {
  return numbers_between(low, high, shape, {.dtype = dtype}, salt);
}

const ls::DType kFloats[] = {ls::kFloat32, ls::kFloat64};

}  // namespace

TEST_CASE("pointwise operations, dense and strided") {
  for (const ls::DType dtype : kFloats) {
    const auto each = [&](const std::string& name, double low, double high, auto function) {
      const auto f = [&](const Inputs& in) { return function(in[0]); };
      check(name, {values({3, 67}, low, high, dtype)}, f);
      check(name + " transposed", {values({5, 4, 3}, low, high, dtype)},
            [&](const Inputs& in) { return function(in[0].transpose(0, 2)); });
    };
#define POINTWISE(name, functor, dtypes, low, high) \
  each(#name, low, high, [](const ls::Tensor& x) { return ls::name(x); });
#define POINTWISE_WITH_PARAMETERS(...)
#include "lockstep/tensor/ops/pointwise.def"
#undef POINTWISE
    each("leaky_relu", -8, 8, [](const ls::Tensor& x) { return ls::leaky_relu(x, 0.2); });
    each("elu", -8, 8, [](const ls::Tensor& x) { return ls::elu(x, 0.7); });
    each("clamp", -8, 8, [](const ls::Tensor& x) { return ls::clamp(x, -1, 2); });
    each("softplus", -8, 8, [](const ls::Tensor& x) { return ls::softplus(x, 2.5, 3); });
    each("pow_scalar", 0.2, 4, [](const ls::Tensor& x) { return ls::pow(x, 2.5); });
  }
  // The GPU's result has a mantissa of ones, which would show if bits were taken for numbers.
  for (const auto function : {ls::exp, ls::sigmoid, ls::erf, ls::gelu, ls::silu, ls::tanh})
    check("NaN of NaN", {ls::full({40}, kNan) * 2}, [=](const Inputs& in) { return function(in[0] + 1); });
  check("second derivative", {values({40}, -2, 2, ls::kFloat64)}, [](const Inputs& in) {
    const ls::Tensor y = ls::tanh(in[0]) * ls::gelu(in[0]);
    return ls::autograd::grad(ls::sum(y), in[0], {.create_graph = true});
  });
}

TEST_CASE("dense operations of every size around the number of elements a thread takes") {
  const TestDevices devices;
  for (const std::int64_t count : {1, 3, 4, 5, 1023, 1024, 1027, 1028, 2047, 2048, 2049, 5000}) {
    INFO(count, " elements");
    const ls::Tensor a = values({count}, -1, 1, ls::kFloat32), b = values({count}, -1, 1, ls::kFloat32, 2);
    const ls::Tensor x = a.to("cuda:0"), y = b.to("cuda:0");
    CHECK(same_bits((x + y).to("cpu"), a + b));
    CHECK(same_bits((x < y).to("cpu"), a < b));
    CHECK(same_bits(x.to(ls::kFloat64).to("cpu"), a.to(ls::kFloat64)));
    CHECK(same_bits((x * 3.0).to("cpu"), a * 3.0));
    CHECK(same_bits(ls::full({count}, 2.5, {.device = "cuda:0"}).to("cpu"), ls::full({count}, 2.5)));
  }
}

TEST_CASE("operations of two operands broadcast, promote and keep NaN") {
  for (const ls::DType dtype : kFloats) {
    const ls::Tensor a = values({4, 1, 33}, 0.5, 2, dtype), b = values({3, 1}, 0.5, 2, dtype, 2);
    check("add", {a, b}, [](const Inputs& in) { return ls::add(in[0], in[1], 2.5); });
    check("sub", {a, b}, [](const Inputs& in) { return in[0] - in[1]; });
    check("mul", {a, b}, [](const Inputs& in) { return in[0] * in[1]; });
    check("div", {a, b}, [](const Inputs& in) { return in[0] / in[1]; });
    check("pow", {a, b}, [](const Inputs& in) { return ls::pow(in[0], in[1]); });
    check("maximum", {a, b}, [](const Inputs& in) { return ls::maximum(in[0], in[1]); });
    check("minimum", {a, b}, [](const Inputs& in) { return ls::minimum(in[0], in[1]); });
    check("where", {a, b}, [](const Inputs& in) { return ls::where(in[0] < in[1], in[0], in[1] * 3); });
    check("compare", {a, b}, [](const Inputs& in) {
      return ls::stack({in[0] == in[0], in[0] != in[0], in[0]<in[0], in[0] <= in[0], in[0]> in[0], in[0] >= in[0]});
    });
  }
  const ls::Tensor integers = ls::arange(-20, 20), small = ls::tensor({3, 250, 7}, {.dtype = ls::kUInt8});
  check("integers", {integers, small}, [](const Inputs& in) {
    return ls::cat({in[0] * in[0], ls::pow(in[1], in[1]).to(ls::kInt64)});
  });
  check("NaN", {ls::tensor({1.0, kNan, 3.0}), ls::tensor({kNan, 2.0, 1.0})},
        [](const Inputs& in) { return ls::maximum(in[0], in[1]); });
}

TEST_CASE("every dtype converts into every other") {
  const ls::DType all[] = {ls::kBool,    ls::kUInt8,    ls::kInt32,   ls::kInt64,
                           ls::kFloat16, ls::kBFloat16, ls::kFloat32, ls::kFloat64};
  for (const ls::DType from : all) {
    for (const ls::DType to : all) {
      INFO(ls::name(from), " to ", ls::name(to));
      const TestDevices devices;
      const ls::Tensor x = values({7, 9}, 0, 120, ls::kFloat64).to(from);
      CHECK(same_bits(x.to("cuda:0").to(to).to("cpu"), x.to(to)));
      CHECK(same_bits(x.to("cuda:0").transpose(0, 1).to(to).to("cpu"), x.transpose(0, 1).to(to).contiguous()));
    }
  }
}

TEST_CASE("reductions of every shape") {
  for (const ls::DType dtype : kFloats) {
    for (const ls::Shape& shape : {ls::Shape{70000, 3}, ls::Shape{3, 70000}, ls::Shape{5, 130, 40}, ls::Shape{1, 1}}) {
      const ls::Tensor x = values(shape, -1, 2, dtype);
      const Tolerance loose = dtype == ls::kFloat32 ? Tolerance{2e-5, 1e-3} : Tolerance{1e-11, 1e-9};
      for (const std::int64_t dim : {0, 1}) {
        INFO("dim ", dim);
        check(
            "sum", {x}, [&](const Inputs& in) { return ls::sum(in[0], {dim}); }, loose);
        check(
            "mean", {x}, [&](const Inputs& in) { return ls::mean(in[0], {dim}); }, loose);
        check(
            "var", {x}, [&](const Inputs& in) { return ls::var(in[0], {dim}, {.correction = 0}); }, loose);
        check("max", {x}, [&](const Inputs& in) { return ls::amax(in[0], {dim}); });
        check("min", {x}, [&](const Inputs& in) { return ls::amin(in[0], {dim}); });
        check("argmax", {x}, [&](const Inputs& in) { return ls::argmax(in[0], dim); });
        check("argmin", {x}, [&](const Inputs& in) { return ls::argmin(in[0], dim); });
      }
      check(
          "norm", {x}, [](const Inputs& in) { return ls::norm(in[0]); }, loose);
    }
  }
  check("sum of integers", {ls::arange(100000).reshape({10, 10000}).to(ls::kInt32)},
        [](const Inputs& in) { return ls::sum(in[0], {1}); });
  // A thread takes eight elements at a time, then two, then one. The lengths end at each of these, in rows and in
  // columns, with few outputs and with many.
  const auto check_sum = [](const ls::Shape& shape) {
    check("every element once", {ls::randint(0, 1000, shape)}, [](const Inputs& in) { return ls::sum(in[0], {1}); });
  };
  for (const std::int64_t n : {0, 1, 2, 3, 9, 31, 32, 33, 255, 257, 700, 1000, 1300, 2047, 2049, 2600, 3100, 4097}) {
    for (const ls::Shape& shape : {ls::Shape{2, n, 1}, ls::Shape{2, n, 3}, ls::Shape{1, n, 70}}) check_sum(shape);
    if (n > 33) continue;
    for (const ls::Shape& shape : {ls::Shape{1100, n, 1}, ls::Shape{10, n, 110}}) check_sum(shape);
  }
  check("ties", {ls::tensor({1.0, 3.0, 3.0, 2.0})}, [](const Inputs& in) { return ls::argmax(in[0]); });
  check("NaN", {ls::tensor({1.0, kNan, 3.0, kNan})}, [](const Inputs& in) { return ls::argmin(in[0]); });
}

TEST_CASE("operations along a dimension") {
  for (const ls::DType dtype : kFloats) {
    for (const ls::Shape& shape : {ls::Shape{3, 10}, ls::Shape{2, 1000}, ls::Shape{3, 50, 4}}) {
      const ls::Tensor x = values(shape, -4, 4, dtype);
      check("softmax", {x}, [](const Inputs& in) { return ls::softmax(in[0], 1); });
      check("log_softmax", {x}, [](const Inputs& in) { return ls::log_softmax(in[0], 1); });
      check(
          "cumsum", {x}, [](const Inputs& in) { return ls::cumsum(in[0], 1); }, Tolerance{1e-4, 1e-4});
      const std::int64_t n = shape.back();
      check(
          "layer_norm", {x, values({n}, 0.5, 2, dtype, 3), values({n}, -1, 1, dtype, 4)},
          [&](const Inputs& in) { return ls::layer_norm(in[0], {n}, in[1], in[2]); }, Tolerance{1e-4, 1e-4});
      check(
          "rms_norm", {x, values({n}, 0.5, 2, dtype, 3)},
          [&](const Inputs& in) { return ls::rms_norm(in[0], {n}, in[1]); }, Tolerance{1e-4, 1e-4});
    }
  }
  {
    const TestDevices devices;  // the same bits at every position of the rows
    const ls::Tensor x = values({2000}, -4, 4, ls::kFloat32).to("cuda:0");
    const ls::Tensor apart = ls::cat({x.slice(0, 0, 1), x}, 0).slice(0, 1, 2001);
    const auto rows = [](const ls::Tensor& all) { return all.reshape({2, 1000}); };
    CHECK(same_bits(ls::softmax(rows(x), 1).to("cpu"), ls::softmax(rows(apart), 1).to("cpu")));
    CHECK(same_bits(ls::layer_norm(rows(x), {1000}).to("cpu"), ls::layer_norm(rows(apart), {1000}).to("cpu")));
  }
  check("a row of -inf", {ls::full({2, 5}, -kInf)}, [](const Inputs& in) { return ls::softmax(in[0].detach(), 1); });
}

TEST_CASE("products, plain, transposed and in batches") {
  for (const ls::DType dtype : kFloats) {
    for (const std::int64_t more : {0, 40, 66}) {  // our own kernel computes small products, cuBLAS the others
      const std::int64_t m = 5 + more, k = 7 + more, n = 4 + more;
      const ls::Tensor a = values({m, k}, -1, 1, dtype), b = values({k, n}, -1, 1, dtype, 2);
      check("matmul", {a, b}, [](const Inputs& in) { return ls::matmul(in[0], in[1]); });
      check("matmul of transposes", {values({k, m}, -1, 1, dtype), values({n, k}, -1, 1, dtype, 2)},
            [](const Inputs& in) { return ls::matmul(in[0].transpose(0, 1), in[1].transpose(0, 1)); });
      check("outer product", {values({m, 1}, -1, 1, dtype), values({1, n}, -1, 1, dtype, 2)},
            [](const Inputs& in) { return ls::matmul(in[0], in[1]); });
      check("vectors", {values({k}, -1, 1, dtype), b}, [](const Inputs& in) { return ls::matmul(in[0], in[1]); });
      check("batches", {values({3, m, k}, -1, 1, dtype), values({3, k, n}, -1, 1, dtype, 2)},
            [](const Inputs& in) { return ls::matmul(in[0], in[1]); });
      check("linear", {a, values({n, k}, -1, 1, dtype, 2), values({n}, -1, 1, dtype, 3)},
            [](const Inputs& in) { return ls::linear(in[0], in[1], in[2]); });
    }
  }
}

TEST_CASE("products of f16 and bf16 are added up in f32 and rounded once") {
  const TestDevices devices;
  for (const std::int64_t terms : {20, 300}) {  // our own kernel computes a small product
    const ls::Tensor a = values({20, terms}, -1, 1, ls::kFloat32), b = values({40, terms}, -1, 1, ls::kFloat32, 2);
    const ls::Tensor bias = values({40}, -1, 1, ls::kFloat32, 3);
    for (const ls::DType dtype : {ls::kFloat16, ls::kBFloat16}) {
      const auto there = [&](const ls::Tensor& x) { return x.to(dtype).to("cuda:0"); };
      const auto rounded = [&](const ls::Tensor& x) { return x.to(dtype).to(ls::kFloat32); };
      const Tolerance one_bit = dtype == ls::kFloat16 ? Tolerance{0x1p-10, 1e-6} : Tolerance{0x1p-7, 1e-6};
      const ls::Tensor product = ls::matmul(there(a), there(b).transpose(0, 1));
      CHECK(product.dtype() == dtype);
      check_close(product.to("cpu").to(ls::kFloat32), ls::matmul(rounded(a), rounded(b).transpose(0, 1)), "matmul",
                  one_bit);
      const Tolerance two_bits{2 * one_bit.rtol,
                               0x1p-6};  // the bias is added to a rounded sum where no kernel adds it itself
      check_close(ls::linear(there(a), there(b), there(bias)).to("cpu").to(ls::kFloat32),
                  ls::linear(rounded(a), rounded(b), rounded(bias)), "linear", two_bits);
    }
  }
}

TEST_CASE("operations without kernels for f16 and bf16 are computed in f32 and rounded once") {
  for (const ls::DType dtype : {ls::kFloat16, ls::kBFloat16}) {
    const ls::Tensor x = values({2, 5, 8}, 0.5, 2, dtype), other = values({5, 8}, 0.5, 2, dtype, 2);
    const Tolerance two_bits = dtype == ls::kFloat16 ? Tolerance{0x1p-9, 0x1p-9} : Tolerance{0x1p-6, 0x1p-6};
    check(
        "arithmetic", {x, other}, [](const Inputs& in) { return (in[0] + in[1]) * in[1] / 0.3; }, two_bits);
    check(
        "pointwise", {x}, [](const Inputs& in) { return ls::gelu(in[0]); }, two_bits);
    check(
        "softmax", {x}, [](const Inputs& in) { return ls::softmax(in[0], -1); }, two_bits);
    check(
        "layer_norm", {x, values({8}, 0.5, 2, dtype, 3)},
        [](const Inputs& in) { return ls::layer_norm(in[0], {8}, in[1]); }, two_bits);
    check(
        "attention", {x, x, x},
        [](const Inputs& in) { return ls::scaled_dot_product_attention(in[0], in[1], in[2], {.is_causal = true}); },
        two_bits);
    check(
        "a change in place", {x.detach()}, [](const Inputs& in) { return in[0].detach().clone().mul_(0.3); }, two_bits);
  }
}

TEST_CASE("convolution, pooling and batch normalisation") {
  for (const ls::DType dtype : kFloats) {
    const ls::Tensor x = values({3, 4, 7, 6}, -1, 1, dtype), bias = values({6}, -1, 1, dtype, 3);
    check("conv2d", {x, values({6, 4, 3, 2}, -1, 1, dtype, 2), bias}, [](const Inputs& in) {
      return ls::conv2d(in[0], in[1], in[2], 1, {1, 0});
    });
    check("conv2d in groups", {x, values({6, 2, 2, 3}, -1, 1, dtype, 2)}, [](const Inputs& in) {
      return ls::conv2d(in[0], in[1], {}, {2, 1}, 1, {1, 2}, 2);
    });
    check("conv2d with many channels", {x, values({70, 4, 3, 2}, -1, 1, dtype, 2)},
          [](const Inputs& in) { return ls::conv2d(in[0], in[1], {}, 1, 1); });
    check("second derivative of conv2d", {x, values({2, 4, 3, 3}, -1, 1, dtype, 2)}, [](const Inputs& in) {
      const ls::Tensor y = ls::tanh(ls::conv2d(in[0], in[1]));
      return ls::autograd::grad(ls::sum(y * y), in[1], {.create_graph = true});
    });
    for (const ls::Size2d& stride : {ls::Size2d(1), ls::Size2d(2, 3)}) {
      check("max_pool2d", {x}, [=](const Inputs& in) { return ls::max_pool2d(in[0], {3, 2}, stride, {1, 0}); });
      for (const bool include : {false, true})
        check("avg_pool2d", {x}, [=](const Inputs& in) {
          return ls::avg_pool2d(in[0], {3, 2}, stride, {1, 1}, false, include);
        });
    }
    for (const ls::Size2d& stride : {ls::Size2d(2), ls::Size2d(3, 4)}) {
      check("max_pool2d, dilated and cut off", {x}, [=](const Inputs& in) {
        return ls::max_pool2d(in[0], {2, 3}, stride, 1, {3, 2}, true);
      });
      for (const bool include : {false, true})
        check("avg_pool2d, cut off", {x}, [=](const Inputs& in) {
          return ls::avg_pool2d(in[0], {4, 3}, stride, {2, 1}, true, include);
        });
    }
    const ls::Tensor weight = values({4}, 0.5, 2, dtype, 4), shift = values({4}, -1, 1, dtype, 5);
    check(
        "batch_norm", {x, weight, shift},
        [](const Inputs& in) { return ls::batch_norm(in[0], in[1], in[2], {}, {}, true); }, Tolerance{1e-4, 1e-4});
    check("running statistics", {x, values({4}, -1, 1, dtype, 6)}, [](const Inputs& in) {
      const ls::Tensor mean = in[1].detach().clone(), var = ls::abs(mean);
      ls::batch_norm(in[0].detach(), {}, {}, mean, var, true, 0.3);
      return ls::stack({mean, var});
    });
    check("batch_norm in eval mode", {x, weight, shift},
          [](const Inputs& in) { return ls::batch_norm(in[0], in[1], in[2], in[2].detach(), in[1].detach(), false); });
  }
  check("ties and NaN", {ls::tensor({1.0, 3.0, 3.0, kNan, -kInf, -kInf, 2.0, 2.0}).reshape({1, 1, 2, 4})},
        [](const Inputs& in) {
          return ls::max_pool2d(in[0], {1, 2});
        });
  check("-inf alone, dilated", {ls::full({1, 1, 3, 7}, -kInf)}, [](const Inputs& in) {
    return ls::max_pool2d(in[0], {2, 2}, 1, 1, {1, 3}, true);
  });
}

TEST_CASE("step functions, remainders, bits") {
  for (const ls::DType dtype : kFloats) {
    const ls::Tensor x = values({5, 7}, -4, 4, dtype), y = values({7}, 0.5, 2, dtype, 2);
    for (ls::Tensor (*step)(const ls::Tensor&) : {ls::floor, ls::ceil, ls::round, ls::trunc, ls::sign})
      check("step", {x}, [=](const Inputs& in) { return step(in[0]); });
    check("remainder", {x, y}, [](const Inputs& in) { return ls::remainder(in[0], -in[1]); });
    check("fmod", {x, y}, [](const Inputs& in) { return ls::fmod(in[0], in[1]); });
    check("floor_divide", {x, y}, [](const Inputs& in) { return ls::floor_divide(in[0], in[1]); });
  }
  for (const ls::DType dtype : {ls::kUInt8, ls::kInt32, ls::kInt64}) {
    const ls::Tensor x = ls::arange(1, 30).to(dtype), y = ls::arange(1, 8).to(dtype).unsqueeze(1);
    check("% of integers", {x, y}, [](const Inputs& in) { return in[0] % in[1] + ls::floor_divide(in[0], in[1]); });
    check("bits", {x, y}, [](const Inputs& in) { return (in[0] & in[1]) + (in[0] | in[1]) + (in[0] ^ ~in[1]); });
  }
}

TEST_CASE("writing by index, flip, diagonals, einsum") {
  const ls::Tensor rows = ls::tensor({{4, 0, 1}, {1, 0, 1}, {4, 2, 3}}), pairs = ls::tensor({{4, 0, 1}, {1, 2, 3}});
  for (const ls::DType dtype : {ls::kUInt8, ls::kInt32, ls::kInt64, ls::kFloat32, ls::kFloat64}) {
    const ls::Tensor x = values({5, 4}, 1, 9, ls::kFloat32).to(dtype),
                     src = values({3, 3}, 1, 9, ls::kFloat32, 2).to(dtype);
    for (const std::string reduce : {"sum", "prod", "amax", "amin"})
      check(reduce.c_str(), {x, rows, src},
            [&](const Inputs& in) { return ls::scatter_reduce(in[0], 0, in[1], in[2], reduce); });
    check("scatter", {x, pairs, src}, [](const Inputs& in) { return ls::scatter(in[0], 0, in[1], in[2]); });
    check("index", {x, pairs[0]}, [](const Inputs& in) { return in[0].index({in[1], ls::tensor(-1)}); });
    check("index by pairs", {x, rows[0]}, [](const Inputs& in) { return in[0].index({in[1], in[1] - 4}); });
    check("index_put", {x, pairs[0], src}, [](const Inputs& in) {
      return ls::index_put(in[0], {in[1], ls::indexing::Slice(0, 3)}, in[2], true);
    });
    check("masked_select", {x}, [](const Inputs& in) { return ls::masked_select(in[0], in[0] > 4); });
    check("flip", {x}, [](const Inputs& in) { return ls::flip(in[0], {0, 1}); });
    check("diagonal", {x}, [](const Inputs& in) { return ls::diag(ls::diag(in[0], -1)); });
  }
  check("einsum", {values({5, 4}, -1, 1, ls::kFloat64), values({4, 5}, -1, 1, ls::kFloat64)},
        [](const Inputs& in) { return ls::einsum("ij,ji->j", in); });
}

TEST_CASE("indexing, sorting, joining") {
  const ls::Tensor index = ls::tensor({4, 0, 2, 4, 1, 4}, {.dtype = ls::kInt64});
  for (const ls::DType dtype : kFloats) {
    const ls::Tensor x = values({5, 6}, -1, 1, dtype), wide = values({2, 5, 3}, -1, 1, dtype);
    check("index_select", {x, index}, [](const Inputs& in) { return ls::index_select(in[0], 0, in[1]); });
    check("index_select inside", {wide, index}, [](const Inputs& in) { return ls::index_select(in[0], 1, in[1]); });
    const ls::Tensor places = ls::tensor({{4, 0, 1, 2, 3, 3}, {1, 1, 2, 0, 4, 0}}, {.dtype = ls::kInt64});
    check("gather", {x, places}, [](const Inputs& in) { return ls::gather(in[0], 0, in[1]); });
    check("scatter_add", {x, places, values({2, 6}, -1, 1, dtype, 2)},
          [](const Inputs& in) { return ls::scatter_add(in[0], 0, in[1], in[2]); });
    check("masked_fill", {x}, [](const Inputs& in) { return ls::masked_fill(in[0], in[0] > 0, -3); });
    check("cat and split", {x, wide.reshape({5, 6})}, [](const Inputs& in) { return ls::cat({in[1], in[0]}, 1); });
    check("views", {wide}, [](const Inputs& in) { return in[0].permute({2, 0, 1}).slice(0, 1, 3).reshape({-1}); });
    for (const bool descending : {false, true}) {
      check("sort", {values({3, 200}, -1, 1, dtype)},
            [&](const Inputs& in) { return ls::sort(in[0], 1, descending).second; });
    }
    check("topk", {values({3, 50}, -1, 1, dtype)}, [](const Inputs& in) { return ls::topk(in[0], 4, 1).first; });
  }
  check("equal keys keep their order", {ls::tensor({2.0, -0.0, kNan, 0.0, 2.0, -kInf, kNan, -1.0})},
        [](const Inputs& in) { return ls::sort(in[0], 0, true).second; });
  check("sorting integers", {ls::tensor({3, -5, 3, 0, 9, -5}, {.dtype = ls::kInt32})},
        [](const Inputs& in) { return ls::sort(in[0], 0, false).second; });
}

TEST_CASE("an index that is out of range is refused before a kernel reads with it") {
  const TestDevices devices;
  const ls::Tensor index = ls::zeros({1, 2}, {.dtype = ls::kInt64, .device = "cuda:0"});
  const ls::Tensor nothing = ls::zeros({0, 2}, {.device = "cuda:0"});
  CHECK(contains(error_of([&] { ls::gather(nothing, 0, index); }), "outside [0, 0)"));
  CHECK(contains(error_of([&] { ls::index_select(nothing, 0, index[0]); }), "outside [0, 0)"));
  CHECK(ls::index_select(nothing, 0, index[0].slice(0, 0, 0)).numel() == 0);
}
