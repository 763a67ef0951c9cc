// Gradient checks of first and second order for every differentiable operation of functions.h that pointwise.def does
// not generate, and for the members that record. The last test compares the tables with the names in the headers.
#include <fstream>
#include <regex>

#include "tests/support/gradcheck_table.h"

namespace {

using namespace gradcheck_table;

void check_binaries() {
  const std::vector<std::pair<Shape, Shape>> pairs = {{{2, 3}, {2, 3}},   {{2, 3}, {3}}, {{3}, {2, 3}},
                                                      {{2, 1}, {1, 3}},   {{}, {2, 2}},  {{2, 2}, {}},
                                                      {{2, 1, 3}, {4, 1}}};
  for (const auto& [a, b] : pairs) {
    const std::vector<Shape> shapes = {a, b};
    check("add", shapes, [](const Inputs& in) { return curved(ls::add(in[0], in[1])); });
    check("add", shapes, [](const Inputs& in) { return curved(ls::add(in[0], in[1], 0.3)); });
    check("sub", shapes, [](const Inputs& in) { return curved(ls::sub(in[0], in[1], 0.7)); });
    check("mul", shapes, [](const Inputs& in) { return ls::mul(in[0], in[1]); });
    check(
        "div", shapes, [](const Inputs& in) { return ls::div(in[0], in[1]); }, 0.5, 2);
    check(
        "pow", shapes, [](const Inputs& in) { return ls::pow(in[0], in[1]); }, 0.5, 2);
    check("maximum", shapes, [](const Inputs& in) { return curved(ls::maximum(in[0], in[1])); });
    check("minimum", shapes, [](const Inputs& in) { return curved(ls::minimum(in[0], in[1])); });
    check("max", shapes, [](const Inputs& in) { return curved(ls::max(in[0], in[1])); });
    check("min", shapes, [](const Inputs& in) { return curved(ls::min(in[0], in[1])); });
    check("remainder", shapes, [](const Inputs& in) { return curved(ls::remainder(in[0], in[1] + 1.5)); });
    check("fmod", shapes, [](const Inputs& in) { return curved(ls::fmod(in[0], in[1] - 1.5)); });
    check(
        "atan2", shapes, [](const Inputs& in) { return ls::atan2(in[0], in[1]); }, 0.5, 2);
    check("where", shapes,
          [](const Inputs& in) { return ls::where(in[0].detach() > in[1].detach(), curved(in[0]), curved(in[1])); });
  }
  check("operators", {{3}},
        [](const Inputs& in) { return (1.5 - in[0]) * (2 + in[0]) / 3 + 2 / (in[0] + 3) - (-in[0]) * in[0] * 0.5; });
  check(
      "pow", {{4}}, [](const Inputs& in) { return ls::pow(in[0], 3) + ls::pow(in[0], 2) + ls::pow(in[0], 1.5); }, 0.5,
      2);
  const std::vector<std::pair<std::string, ls::Tensor (*)(const ls::Tensor&)>> steps = {
      {"floor", ls::floor}, {"ceil", ls::ceil}, {"round", ls::round}, {"trunc", ls::trunc}, {"sign", ls::sign}};
  for (const auto& each : steps)
    check(each.first, {{2, 3}}, [&](const Inputs& in) { return curved(in[0]) + each.second(in[0] * 3) * in[0]; });
  check("floor_divide", {{2, 3}, {3}},
        [](const Inputs& in) { return curved(in[0]) * in[1] + ls::floor_divide(in[0] * 5, in[1] + 1.5) * in[0]; });
  check("square", {{2, 3}}, [](const Inputs& in) { return ls::square(in[0]); });
  check(
      "reciprocal", {{2, 3}}, [](const Inputs& in) { return ls::reciprocal(in[0]); }, 0.5, 2);
  for (const double base : {2.0, 0.5, 1.0, 0.0})
    check(
        "pow", {{4}}, [=](const Inputs& in) { return ls::pow(base, in[0]); }, 0.5, 2);
  check("where", {{2, 3}}, [](const Inputs& in) {
    return ls::where(in[0].detach() > 0, curved(in[0]), 2.0) + ls::where(in[0].detach() > 0.3, 1.0, curved(in[0]));
  });
  check("masked_fill", {{2, 3}},
        [](const Inputs& in) { return curved(ls::masked_fill(in[0], in[0].detach()[0] > 0, 0.5)); });
}

void check_reductions() {
  const std::vector<Shape> dim_sets = {{}, {0}, {1}, {-1}, {0, 2}, {0, 1}, {1, 2}, {2, 0, 1}};
  for (const Shape& dims : dim_sets) {
    for (const bool keep : {false, true}) {
      const auto reduce = [&](const std::string& op, auto function) {
        check(op, {{2, 3, 2}}, [&](const Inputs& in) { return function(curved(in[0])); });
      };
      reduce("sum", [&](const ls::Tensor& x) { return curved(ls::sum(x, dims, keep)); });
      reduce("mean", [&](const ls::Tensor& x) { return curved(ls::mean(x, dims, keep)); });
      reduce("amax", [&](const ls::Tensor& x) { return ls::amax(x, dims, keep); });
      reduce("amin", [&](const ls::Tensor& x) { return ls::amin(x, dims, keep); });
      reduce("var", [&](const ls::Tensor& x) { return ls::var(x, dims, {.keepdim = keep}); });
      reduce("var", [&](const ls::Tensor& x) { return ls::var(x, dims, {.correction = 0, .keepdim = keep}); });
      reduce("norm", [&](const ls::Tensor& x) { return ls::norm(x, 2, dims, keep); });
      reduce("logsumexp", [&](const ls::Tensor& x) { return ls::logsumexp(x, dims, keep); });
    }
  }
  check("clamp_min", {{2, 3}}, [](const Inputs& in) { return curved(ls::clamp_min(curved(in[0]), -0.2)); });
  check("clamp_max", {{2, 3}}, [](const Inputs& in) { return curved(ls::clamp_max(curved(in[0]), 0.2)); });
  const auto all = [](const std::string& op, ls::Tensor (*function)(const ls::Tensor&)) {
    check(op, {{2, 3}}, [=](const Inputs& in) { return curved(function(curved(in[0]))); });
  };
  all("max", ls::max), all("min", ls::min);
  all("sum", [](const ls::Tensor& x) { return ls::sum(x); });
  all("mean", [](const ls::Tensor& x) { return ls::mean(x); });
  all("norm", [](const ls::Tensor& x) { return ls::norm(x); });
  all("var", [](const ls::Tensor& x) { return ls::var(x); });
  all("std", [](const ls::Tensor& x) { return ls::std(x); });
  check("sum", {{}}, [](const Inputs& in) { return curved(ls::sum(in[0], {0})); });
  for (std::int64_t dim : {0, 1, -1}) {
    check("logsumexp", {{2, 3}}, [=](const Inputs& in) { return ls::logsumexp(in[0], dim); });
    check("cumsum", {{2, 3, 2}}, [=](const Inputs& in) { return curved(ls::cumsum(in[0], dim)); });
    check("softmax", {{2, 3, 2}}, [=](const Inputs& in) { return ls::softmax(in[0], dim); });
    check("log_softmax", {{2, 3, 2}}, [=](const Inputs& in) { return ls::log_softmax(in[0], dim); });
  }
}

void check_layer_norm() {
  for (const Shape& x : {Shape{5}, Shape{3, 5}, Shape{2, 2, 5}}) {
    check("layer_norm", {x, {5}, {5}}, [](const Inputs& in) { return ls::layer_norm(in[0], 5, in[1], in[2]); });
    check("layer_norm", {x}, [](const Inputs& in) { return ls::layer_norm(in[0], 5, {}, {}, 0.1); });
    check("layer_norm", {x, {5}}, [](const Inputs& in) { return curved(ls::layer_norm(in[0], 5, in[1])); });
    check("layer_norm", {x, {5}}, [](const Inputs& in) { return curved(ls::layer_norm(in[0], 5, {}, in[1])); });
  }
  check("layer_norm", {{4, 3, 2}, {3, 2}, {3, 2}}, [](const Inputs& in) {
    return ls::layer_norm(in[0], {3, 2}, in[1], in[2]);
  });
  check("layer_norm", {{2, 3, 4}, {2, 3}, {3, 2}},  // strided operands
        [](const Inputs& in) {
          return ls::layer_norm(in[0].transpose(0, 2), {3, 2}, in[1].t(), in[2]);
        });
}

void check_rms_norm() {
  for (const Shape& x : {Shape{5}, Shape{3, 5}, Shape{2, 2, 5}}) {
    check("rms_norm", {x, {5}}, [](const Inputs& in) { return curved(ls::rms_norm(in[0], 5, in[1])); });
    check("rms_norm", {x}, [](const Inputs& in) { return curved(ls::rms_norm(in[0], 5, {}, 0.1)); });
  }
  check("rms_norm", {{2, 3, 4}, {2, 3}},  // strided operands
        [](const Inputs& in) {
          return curved(ls::rms_norm(in[0].transpose(0, 2), {3, 2}, in[1].t()));
        });
}

void check_products() {
  const std::vector<std::pair<Shape, Shape>> pairs = {{{3}, {3}},
                                                      {{3}, {3, 2}},
                                                      {{2, 3}, {3}},
                                                      {{2, 3}, {3, 2}},
                                                      {{4, 2, 3}, {3}},
                                                      {{3}, {4, 3, 2}},
                                                      {{4, 2, 3}, {3, 2}},
                                                      {{2, 3}, {4, 3, 2}},
                                                      {{2, 2, 3}, {2, 3, 2}},
                                                      {{1, 2, 3}, {2, 3, 2}},
                                                      {{2, 1, 2, 3}, {2, 3, 2}},
                                                      {{2, 2, 2, 3}, {1, 2, 3, 1}}};
  for (const auto& [a, b] : pairs) {
    check("matmul", {a, b}, [](const Inputs& in) { return ls::matmul(in[0], in[1]); });
    if (a.dim() < 2 || b.dim() < 2) continue;
    Shape a_turned = a, b_turned = b;
    std::swap(a_turned[a.size() - 1], a_turned[a.size() - 2]);
    std::swap(b_turned[b.size() - 1], b_turned[b.size() - 2]);
    check("matmul", {a_turned, b_turned},
          [](const Inputs& in) { return ls::matmul(in[0].transpose(-1, -2), in[1].transpose(-1, -2)); });
  }
  for (const Shape& x : {Shape{3}, Shape{4, 3}, Shape{2, 4, 3}}) {
    check("linear", {x, {2, 3}}, [](const Inputs& in) { return ls::linear(in[0], in[1]); });
    check("linear", {x, {2, 3}, {2}}, [](const Inputs& in) { return curved(ls::linear(in[0], in[1], in[2])); });
  }
  check("linear", {{4, 3}, {3, 2}, {2}}, [](const Inputs& in) { return ls::linear(in[0], in[1].t(), in[2]); });
}

void check_attention() {
  const auto attention = [](const std::vector<Shape>& shapes, const ls::AttentionOptions& options) {
    check("scaled_dot_product_attention", shapes, [=](const Inputs& in) {
      ls::manual_seed(3);  // every evaluation has the same dropout
      return ls::scaled_dot_product_attention(in[0], in[1], in[2], options);
    });
  };
  const ls::Tensor mask =
      ls::tensor({{true, false, true, true}, {false, false, false, false}, {false, true, true, false}});
  attention({{2, 3}, {4, 3}, {4, 2}}, {});
  attention({{2, 1, 2, 3}, {2, 3, 3}, {1, 3, 2}}, {.scale = 0.9});
  attention({{3, 2}, {4, 2}, {4, 3}}, {.is_causal = true});
  attention({{2, 3, 2}, {2, 4, 2}, {2, 4, 2}}, {.attn_mask = mask});
  attention({{3, 2}, {4, 2}, {4, 2}}, {.dropout_p = 0.4, .is_causal = true});
  check("dropout", {{4, 5}}, [](const Inputs& in) {
    ls::manual_seed(6);
    return ls::dropout(curved(in[0]), 0.4);
  });
  check("scaled_dot_product_attention", {{3, 2}, {4, 2}, {4, 2}, {3, 4}}, [](const Inputs& in) {
    return ls::scaled_dot_product_attention(in[0], in[1], in[2], {.attn_mask = curved(in[3])});
  });
}

void check_pictures() {
  using ls::Size2d;
  const auto convolution = [](const std::vector<Shape>& shapes, const Size2d& stride, const Size2d& padding,
                              const Size2d& dilation, std::int64_t groups) {
    check("conv2d", shapes, [=](const Inputs& in) {
      return curved(ls::conv2d(in[0], in[1], in.size() > 2 ? in[2] : ls::Tensor(), stride, padding, dilation, groups));
    });
  };
  convolution({{2, 2, 4, 3}, {3, 2, 2, 2}, {3}}, 1, 0, 1, 1);
  convolution({{2, 2, 4, 4}, {2, 1, 3, 2}, {2}}, {2, 1}, {1, 2}, 1, 2);
  convolution({{1, 2, 5, 4}, {2, 2, 2, 2}}, 1, 1, {2, 3}, 1);
  convolution({{2, 4, 3}, {3, 2, 2, 2}, {3}}, 1, 1, 1, 1);
  check("conv_transpose2d", {{2, 4, 3, 2}, {4, 1, 2, 3}, {2}}, [](const Inputs& in) {
    return curved(ls::conv_transpose2d(in[0], in[1], in[2], {2, 3}, {1, 0}, {1, 2}, 2, {1, 2}));
  });
  check("conv_transpose2d", {{2, 3, 4}, {2, 3, 2, 2}},
        [](const Inputs& in) { return curved(ls::conv_transpose2d(in[0], in[1])); });
  check("pools of one image", {{2, 4, 5}}, [](const Inputs& in) {
    return curved(ls::max_pool2d(curved(in[0]), 2)) + curved(ls::avg_pool2d(curved(in[0]), 2));
  });
  for (const Size2d& padding : {Size2d(0), Size2d(1, 0)}) {
    check("max_pool2d", {{2, 2, 4, 5}}, [=](const Inputs& in) {
      return curved(ls::max_pool2d(curved(in[0]), {3, 2}, {2, 1}, padding));
    });
    for (const bool include : {false, true})
      check("avg_pool2d", {{2, 2, 4, 5}}, [=](const Inputs& in) {
        return curved(ls::avg_pool2d(curved(in[0]), {3, 2}, {2, 1}, padding, false, include));
      });
  }
  check("max_pool2d", {{2, 2, 4, 5}}, [](const Inputs& in) {
    return curved(ls::max_pool2d(curved(in[0]), 2, {3, 2}, 1, {2, 1}, true));
  });
  check("avg_pool2d", {{2, 2, 4, 5}}, [](const Inputs& in) {
    return curved(ls::avg_pool2d(curved(in[0]), {3, 2}, 2, 1, true, true));
  });
  const ls::Tensor mean = ls::tensor({0.1, -0.2}, {.dtype = ls::kFloat64}), var = ls::abs(mean) + 0.5;
  for (const bool training : {true, false}) {
    const auto normalize = [=](const ls::Tensor& x, const ls::Tensor& weight, const ls::Tensor& bias) {
      return ls::batch_norm(x, weight, bias, training ? ls::Tensor() : mean, training ? ls::Tensor() : var, training);
    };
    check("batch_norm", {{2, 2, 2, 2}, {2}, {2}}, [=](const Inputs& in) { return normalize(in[0], in[1], in[2]); });
    check("batch_norm", {{2, 2, 3, 1}, {2}}, [=](const Inputs& in) { return curved(normalize(in[0], {}, in[1])); });
    check("batch_norm", {{4, 2}, {2}}, [=](const Inputs& in) { return curved(normalize(in[0], in[1], {})); });
  }
}

void check_indexing() {
  for (const bool interleaved : {true, false}) {
    check("rotary_embedding", {{2, 3, 4}}, [=](const Inputs& in) {
      return curved(ls::rotary_embedding(in[0], {.base = 10, .first = 2, .interleaved = interleaved}));
    });
  }
  for (const std::int64_t diagonal : {-1, 0, 1}) {
    check("tril", {{2, 3, 4}}, [=](const Inputs& in) { return curved(ls::tril(in[0], diagonal)); });
    check("triu", {{3, 2}}, [=](const Inputs& in) { return curved(ls::triu(in[0], diagonal)); });
  }
  for (std::int64_t dim : {0, 1, -1}) {
    check("cat", {{2, 3}, {2, 3}, {2, 3}}, [=](const Inputs& in) {
      return curved(ls::cat({in[0], in[1], in[0], in[2]}, dim));
    });
    check("cat", {{0}, {2, 3}, {0}}, [=](const Inputs& in) { return curved(ls::cat({in[0], in[1], in[2]}, dim)); });
    check("stack", {{2, 3}, {2, 3}}, [=](const Inputs& in) { return curved(ls::stack({in[0], in[1]}, dim)); });
    check("split", {{4, 5}}, [=](const Inputs& in) {
      const auto parts = ls::split(in[0], 2, dim);
      return curved(parts[0]) * 2 + parts[1] * parts[0];
    });
    check("chunk", {{4, 5}}, [=](const Inputs& in) { return curved(ls::chunk(in[0], 3, dim).back()); });
    check("index_select", {{3, 4}}, [=](const Inputs& in) {
      return curved(ls::index_select(in[0], dim, ls::tensor({2, 0, 2})));
    });
    check("gather", {{3, 4}}, [=](const Inputs& in) {
      return curved(ls::gather(in[0], dim, ls::tensor({{0, 2}, {1, 1}, {2, 0}})));
    });
    check("scatter_add", {{3, 4}, {3, 2}}, [=](const Inputs& in) {
      return curved(ls::scatter_add(in[0], dim, ls::tensor({{0, 2}, {1, 1}, {2, 0}}), in[1]));
    });
    check("scatter_add", {{3, 4}, {3, 3}}, [=](const Inputs& in) {
      return curved(ls::scatter_add(in[0], dim, ls::tensor({{0, 2}, {2, 1}}), curved(in[1])));
    });
    for (const bool flag : {false, true}) {
      check("sort", {{3, 4}}, [=](const Inputs& in) { return curved(ls::sort(in[0], dim, flag).first); });
      check("topk", {{3, 4}}, [=](const Inputs& in) { return curved(ls::topk(in[0], 2, dim, flag).first); });
    }
  }
}

void check_members() {
  check("view", {{2, 6}}, [](const Inputs& in) { return curved(in[0].view({3, -1})); });
  check("reshape", {{2, 6}}, [](const Inputs& in) { return curved(in[0].t().reshape({3, 4})); });
  check("transpose", {{2, 3, 2}}, [](const Inputs& in) { return curved(in[0].transpose(0, -2)); });
  check("permute", {{2, 3, 4}}, [](const Inputs& in) { return curved(in[0].permute({2, -3, 1})); });
  check("t", {{2, 3}}, [](const Inputs& in) { return curved(in[0].t()); });
  check("squeeze", {{1, 3, 1}},
        [](const Inputs& in) { return curved(in[0].squeeze()) + curved(in[0].squeeze(0).squeeze(-1)); });
  check("unsqueeze", {{3}}, [](const Inputs& in) { return curved(in[0].unsqueeze(-1)) * in[0].unsqueeze(0); });
  check("expand", {{2, 1}}, [](const Inputs& in) { return curved(in[0].expand({3, -1, 2})); });
  check("select", {{3, 2}}, [](const Inputs& in) { return curved(in[0].select(1, -1)) + curved(in[0].select(-1, 0)); });
  check("slice", {{5, 4}}, [](const Inputs& in) { return curved(in[0].slice(0, -4, 5, 2).slice(-1, 1, 100)); });
  check("narrow", {{5, 2}}, [](const Inputs& in) { return curved(in[0].narrow(0, -3, 2)); });
  check("flatten", {{2, 3, 2}},
        [](const Inputs& in) { return curved(in[0].flatten(1)) + curved(in[0].transpose(0, 2).flatten(-2, -1)); });
  check("repeat", {{2, 1, 2}}, [](const Inputs& in) {
    return curved(in[0].repeat({2, 1, 3, 2})) * in[0].repeat({1, 1, 2});
  });
  check("operator[]", {{3, 2}}, [](const Inputs& in) { return curved(in[0][1]) * in[0][-1]; });
  check("arithmetic", {{2, 3}, {3}}, [](const Inputs& in) {
    const ls::Tensor &a = in[0], &b = in[1];
    return a.add(b, 0.3).mul(b).sub(a.pow(3), 2).div(b.mul(b).add(1)) + a.add(0.5).mul(2).sub(1).div(3).pow(2) +
           b.exp().pow(a);
  });
  check("functions", {{2, 3}}, [](const Inputs& in) {
    const ls::Tensor& x = in[0];
    return x.exp().log().abs() + x.sigmoid().sqrt() + x.tanh() * x.relu() + curved(x).clamp(-0.3, 0.4);
  });
  check("softmax", {{2, 3}}, [](const Inputs& in) { return in[0].softmax(0) * in[0].log_softmax(1); });
  check("matmul", {{2, 3}, {3, 2}}, [](const Inputs& in) { return in[0].matmul(in[1]); });
  check("clone", {{3}}, [](const Inputs& in) { return curved(in[0].clone()); });
  check("contiguous", {{2, 3}}, [](const Inputs& in) { return curved(in[0].t().contiguous()); });
  check("to", {{3}}, [](const Inputs& in) { return curved(in[0].to("cpu:1")).to("cpu"); });
}

}  // namespace

TEST_CASE("operations with two operands have correct first and second derivatives, broadcasting included") {
  check_binaries();
}
TEST_CASE(
    "reductions over every set of dimensions, with and without keepdim, have correct first and second derivatives") {
  check_reductions();
}
TEST_CASE("layer normalisation with and without its parameters has correct first and second derivatives") {
  check_layer_norm(), check_rms_norm();
}
TEST_CASE("products of every combination of shapes have correct first and second derivatives") { check_products(); }
TEST_CASE("convolution, pooling and batch normalisation have correct first and second derivatives") {
  check_pictures();
}
TEST_CASE("joining, splitting, indexing and sorting have correct first and second derivatives") { check_indexing(); }
TEST_CASE("views and conversions have correct first and second derivatives") { check_members(); }

TEST_CASE("a member function equals the free function of its name") {
  const ls::Tensor a = numbers_between(0.3, 2, {3, 3}), b = numbers_between(0.3, 2, {3}, {}, 2);
#define SAME(name, ...) CHECK_MESSAGE(same_bits(a.name(__VA_ARGS__), ls::name(a __VA_OPT__(, ) __VA_ARGS__)), #name)
  SAME(add, b);
  SAME(add, b, 2);
  SAME(add, 2.5);
  SAME(sub, b);
  SAME(sub, b, 2);
  SAME(sub, 2.5);
  SAME(mul, b);
  SAME(mul, 2.5);
  SAME(div, b);
  SAME(div, 2.5);
  SAME(pow, b);
  SAME(pow, 2.5);
  SAME(abs);
  SAME(exp);
  SAME(log);
  SAME(sqrt);
  SAME(relu);
  SAME(sigmoid);
  SAME(tanh);
  SAME(clamp, 0.5, 1.0);
  SAME(softmax, 0);
  SAME(log_softmax, 1);
  SAME(matmul, b);
#undef SAME
}

// Values and infinities of PyTorch 1.13.1: a = (0, 0, 0, 2, -0), p = (-2, 0, 3, -1, -1), a**p summed.
TEST_CASE("pow has PyTorch's gradient with respect to the exponent where the base is 0") {
  const ls::TensorOptions f64 = {.dtype = ls::kFloat64, .requires_grad = true};
  const ls::Tensor a = ls::tensor({0.0, 0.0, 0.0, 2.0, -0.0}, {.dtype = ls::kFloat64}),
                   p = ls::tensor({-2.0, 0.0, 3.0, -1.0, -1.0}, f64);
  ls::sum(ls::pow(a, p)).backward();
  const std::vector<double> have = p.grad().to_vector<double>();
  CHECK(have[0] == -kInf);
  CHECK(have[1] == 0);
  CHECK(have[2] == 0);
  CHECK(have[3] == doctest::Approx(0.5 * std::log(2.0)));
  CHECK(have[4] == kInf);
  const ls::Tensor q = ls::tensor({-2.0, 0.0, 3.0}, f64);
  ls::sum(ls::pow(0.0, q)).backward();
  CHECK(q.grad().to_vector<double>() == std::vector<double>{-kInf, 0, 0});
}

TEST_CASE("maximum and minimum give equal operands half of the gradient each, and all of it to both if one is NaN") {
  const ls::Tensor a = ls::tensor({1.0, 2.0, 3.0, kNan}, {.requires_grad = true}),
                   b = ls::tensor({2.0, 2.0, 2.0, 2.0}, {.requires_grad = true});
  ls::sum(ls::max(a, b)).backward();
  CHECK(a.grad().to_vector<double>() == std::vector<double>{0, 0.5, 1, 1});
  CHECK(b.grad().to_vector<double>() == std::vector<double>{1, 0.5, 0, 1});
  a.set_grad({}), b.set_grad({});
  ls::sum(ls::min(a, b)).backward();
  CHECK(a.grad().to_vector<double>() == std::vector<double>{1, 0.5, 0, 1});
  CHECK(b.grad().to_vector<double>() == std::vector<double>{0, 0.5, 1, 1});
}

TEST_CASE("a number to the power of a tensor follows the promotion of other operations with numbers") {
  CHECK(ls::pow(2, ls::tensor({0, 3, 5})).to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 8, 32});
  CHECK(ls::pow(ls::tensor({2, 1, -1, -1, 0}), ls::tensor({-1, -1, -1, -2, -1})).to_vector<std::int64_t>() ==
        std::vector<std::int64_t>{0, 1, -1, 1, 0});
  CHECK(ls::pow(0.5, ls::tensor({0, 3})).dtype() == ls::kFloat32);
  CHECK(ls::pow(2, ls::tensor({0.5}, {.dtype = ls::kFloat64})).item<double>() == std::sqrt(2.0));
}

TEST_CASE("gradients of empty tensors are empty, of 0-d tensors 0-d") {
  const ls::Tensor empty = ls::zeros({0, 3}, {.requires_grad = true}), w = ls::ones({2, 3}, {.requires_grad = true});
  ls::sum(ls::linear(empty, w)).backward();
  CHECK(empty.grad().shape() == ls::Shape{0, 3});
  CHECK(w.grad().to_vector<double>() == std::vector<double>(6, 0));
  const ls::Tensor none = ls::zeros({2, 0}, {.requires_grad = true}), v = ls::zeros({3, 0}, {.requires_grad = true});
  ls::sum(ls::linear(none, v)).backward();
  CHECK(v.grad().shape() == ls::Shape{3, 0});
  const ls::Tensor scalar = ls::tensor(2.0, {.requires_grad = true});
  ls::exp(scalar).backward();
  CHECK(scalar.grad().dim() == 0);
}

TEST_CASE("every function declared in functions.h is in the tables above, generated, or without gradient") {
  check_binaries(), check_reductions(), check_layer_norm(), check_rms_norm(), check_products(), check_attention(),
      check_pictures(), check_indexing(), check_shaping(), check_contractions();
  std::set<std::string> known = checked();
#define POINTWISE(name, ...) known.insert(#name);
#include "lockstep/tensor/ops/pointwise.def"
#undef POINTWISE
  known.insert({"equal",       "allclose",    "argmax",     "argmin",      "one_hot",       "any",        "all",
                "isnan",       "isinf",       "isfinite",   "logical_not", "logical_and",   "logical_or", "logical_xor",
                "bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor", "count_nonzero", "nonzero",    "argsort"});
  std::ifstream header(LOCKSTEP_GOLDEN_DIR "/../../autograd/ops/functions.h");
  REQUIRE(header.good());
  const std::regex declaration(
      R"(^(?:inline )?(?:Tensor|bool|std::vector<Tensor>|std::pair<Tensor, Tensor>) (\w+)\(.*)");
  std::smatch match;
  int found = 0;
  for (std::string line; std::getline(header, line);) {
    if (!std::regex_match(line, match, declaration) || match[1] == "operator") continue;
    ++found;
    CHECK_MESSAGE(known.contains(match[1]), match[1].str() << " has no gradient check");
  }
  CHECK(found > 50);
}
