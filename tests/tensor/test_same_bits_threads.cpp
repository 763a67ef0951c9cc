// The result of an operation must not depend on the address of its operands, or on the number of threads.
//
// The table below has every operation of ops.h and functions.h (those on images have a separate file); pointwise.def
// provides the pointwise ones. Sizes end in every kind of tail, or are large enough for several threads.
#include "lockstep/tensor/ops/ops_internal.h"
#include "tests/tensor/same_bits.h"

namespace {

// Functions of one operand: values, derivatives and second derivatives of the pointwise functions.
Table pointwise() {
  Table table;
#define POINTWISE(name, functor, dtypes, low, high)                                                                \
  table.push_back({#name,                                                                                          \
                   [](const Tensors& in) {                                                                         \
                     return Tensors{ls::raw::pointwise(ls::raw::Pointwise::name, in[0], {0.5, 1.5})};              \
                   },                                                                                              \
                   low, high});                                                                                    \
  table.push_back(                                                                                                 \
      {#name " derivative",                                                                                        \
       [](const Tensors& in) {                                                                                     \
         return Tensors{ls::raw::pointwise_derivative(ls::raw::Pointwise::name, in[1], in[0], in[2], {0.5, 1.5})}; \
       },                                                                                                          \
       low, high});                                                                                                \
  table.push_back(                                                                                                 \
      {#name " second derivative",                                                                                 \
       [](const Tensors& in) {                                                                                     \
         return Tensors{ls::raw::pointwise_second_derivative(ls::raw::Pointwise::name, in[1], in[0], {0.5, 1.5})}; \
       },                                                                                                          \
       low, high});
#include "lockstep/tensor/ops/pointwise.def"
#undef POINTWISE
  return table;
}

Table elementwise() {
  using ls::raw::Compare;
  Table table = {
      {"add", [](const Tensors& in) { return Tensors{in[0] + in[1]}; }},
      {"add alpha", [](const Tensors& in) { return Tensors{ls::add(in[0], in[1], 0.3)}; }},
      {"sub", [](const Tensors& in) { return Tensors{in[0] - in[1]}; }},
      {"mul", [](const Tensors& in) { return Tensors{in[0] * in[1]}; }},
      {"div", [](const Tensors& in) { return Tensors{in[0] / in[1]}; }},
      {"pow", [](const Tensors& in) { return Tensors{ls::pow(in[0], in[1])}; }, 0.2, 3},
      {"maximum", [](const Tensors& in) { return Tensors{ls::maximum(in[0], in[1])}; }},
      {"minimum", [](const Tensors& in) { return Tensors{ls::minimum(in[0], in[1])}; }},
      {"with numbers",
       [](const Tensors& in) {
         return Tensors{1.5 + in[0], 2.5 - in[0], in[0] * 1.3, 0.7 / in[0], in[0] / 3};
       }},
      {"where",
       [](const Tensors& in) {
         return Tensors{ls::where(in[0] > 0, in[1], in[2]), ls::where(in[0] > 0, in[1], 2.0)};
       }},
      {"masked_fill", [](const Tensors& in) { return Tensors{ls::masked_fill(in[0], in[1] > 0, 3)}; }},
      {"add_", [](const Tensors& in) { return Tensors{in[0].add_(in[1], 0.3)}; }},
      {"sub_", [](const Tensors& in) { return Tensors{in[0].sub_(in[1])}; }},
      {"mul_", [](const Tensors& in) { return Tensors{in[0].mul_(in[1])}; }},
      {"div_", [](const Tensors& in) { return Tensors{in[0].div_(in[1])}; }},
      {"fill_", [](const Tensors& in) { return Tensors{in[0].fill_(1.25)}; }},
      {"clone and copy_",
       [](const Tensors& in) {
         return Tensors{in[0].clone(), in[1].copy_(in[0])};
       }},
      {"casts",
       [](const Tensors& in) {
         Tensors out;
         for (int d = 0; d < ls::kDTypeCount; ++d) {
           out.push_back((in[0] * 100).to(static_cast<ls::DType>(d)));
           out.push_back(out.back().to(ls::kFloat32));
         }
         return out;
       }},
      {"cat",
       [](const Tensors& in) {
         return Tensors{ls::cat({in[0], in[1], in[2]})};
       }},
      {"stack",
       [](const Tensors& in) {
         return Tensors{ls::stack({in[0], in[1]}, -1)};
       }},
      {"allclose",
       [](const Tensors& in) {
         return Tensors{ls::tensor({ls::allclose(in[0], in[1]), ls::equal(in[0], in[0])})};
       }},
  };
  const std::vector<std::pair<const char*, Compare>> relations = {
      {"==", Compare::kEqual},     {"!=", Compare::kNotEqual}, {"<", Compare::kLess},
      {"<=", Compare::kLessEqual}, {">", Compare::kGreater},   {">=", Compare::kGreaterEqual}};
  for (const auto& [symbol, relation] : relations)
    table.push_back({symbol, [relation = relation](const Tensors& in) {
                       return Tensors{ls::raw::compare(relation, in[0], in[1])};
                     }});
  return table;
}

// All operations that reduce or run along a dimension, for each dimension and for all.
Table reductions() {
  using ls::Shape;
  const auto over = [](auto function) {
    return [function](const Tensors& in) {
      Tensors out{function(in[0], Shape{})};
      for (int d = 0; d < in[0].dim(); ++d) out.push_back(function(in[0], Shape{d}));
      if (in[0].dim() == 3) out.push_back(function(in[0], Shape{0, 2}));
      return out;
    };
  };
  const auto along = [](auto function) {
    return [function](const Tensors& in) {
      Tensors out;
      for (int d = 0; d < in[0].dim(); ++d) {
        for (const ls::Tensor& t : function(in, d)) out.push_back(t);
      }
      return out;
    };
  };
  return {
      {"sum", over([](const ls::Tensor& x, const Shape& dims) { return ls::sum(x, dims); })},
      {"mean", over([](const ls::Tensor& x, const Shape& dims) { return ls::mean(x, dims); })},
      {"amax", over([](const ls::Tensor& x, const Shape& dims) { return ls::amax(x, dims); })},
      {"amin", over([](const ls::Tensor& x, const Shape& dims) { return ls::amin(x, dims); })},
      {"var", over([](const ls::Tensor& x, const Shape& dims) { return ls::var(x, dims); })},
      {"norm", over([](const ls::Tensor& x, const Shape& dims) { return ls::norm(x, 2, dims); })},
      {"logsumexp", over([](const ls::Tensor& x, const Shape& dims) { return ls::logsumexp(x, dims); })},
      {"argmax", along([](const Tensors& in, int d) {
         return Tensors{ls::argmax(in[0], d), ls::argmin(in[0], d), ls::argmax(in[0]), ls::argmin(in[0])};
       })},
      {"cumsum", along([](const Tensors& in, int d) {
         return Tensors{ls::cumsum(in[0], d), ls::raw::cumsum(in[0], d, true)};
       })},
      {"softmax", along([](const Tensors& in, int d) { return Tensors{ls::softmax(in[0], d)}; })},
      {"log_softmax", along([](const Tensors& in, int d) { return Tensors{ls::log_softmax(in[0], d)}; })},
      {"softmax_backward",
       along([](const Tensors& in, int d) { return Tensors{ls::raw::softmax_backward(in[1], in[0], d)}; })},
      {"log_softmax_backward",
       along([](const Tensors& in, int d) { return Tensors{ls::raw::log_softmax_backward(in[1], in[0], d)}; })},
      {"layer_norm",
       [](const Tensors& in) {
         Tensors out;
         for (int dims = 1; dims <= in[0].dim(); ++dims) {
           const ls::Tensor &x = in[0], &grad = in[1];
           const Shape shape(std::vector<std::int64_t>(x.shape().end() - dims, x.shape().end()));
           const ls::Tensor weight = in[1].reshape({-1}).narrow(0, 0, shape.numel()).view(shape);
           const auto y = ls::raw::layer_norm("layer_norm", x, shape, weight, weight, 1e-5, /*centered=*/true);
           const ls::Tensor by_weight = ls::raw::empty(shape, x.options()),
                            by_bias = ls::raw::empty(shape, x.options());
           ls::raw::layer_norm_backward_affine(grad, x, y.statistics, by_weight, by_bias);
           for (const ls::Tensor& t : {y.out, y.statistics, by_weight, by_bias, ls::layer_norm(x, shape)})
             out.push_back(t);
           for (const bool centered : {true, false}) {
             out.push_back(ls::raw::layer_norm_backward(grad, x, weight, y.statistics, centered));
             out.push_back(ls::raw::layer_norm_backward(grad, x, {}, y.statistics, centered));
           }
           out.push_back(ls::rms_norm(x, shape, weight));
         }
         return out;
       }},
      {"sort", along([](const Tensors& in, int d) {
         const auto [values, indices] = ls::sort(in[0], d, d % 2 == 1);
         const auto [top, at] = ls::topk(in[0], in[0].size(d) / 2, d);
         return Tensors{values, indices, top, at};
       })},
      {"index_select, gather, scatter_add, index_add", along([](const Tensors& in, int d) {
         const std::int64_t n = in[0].size(d);
         const ls::Tensor rows = ls::arange(n - 1, -1, -2);
         const ls::Tensor order = ls::sort(in[1], d).second;
         return Tensors{ls::index_select(in[0], d, rows), ls::gather(in[0], d, order),
                        ls::scatter_add(in[0], d, order, in[1]),
                        ls::raw::index_add(in[0].shape(), d, ls::arange(n), in[1]),
                        ls::raw::index_add(in[0].shape(), d, ls::zeros({n}, {.dtype = ls::kInt64}), in[1])};
       })},
      {"scatter_reduce, index_put, prod, flip", along([](const Tensors& in, int d) {
         const ls::Tensor rows = ls::zeros(in[1].shape(), {.dtype = ls::kInt64});
         const std::vector<ls::TensorIndex> first = {ls::zeros({8}, {.dtype = ls::kInt64})};
         return Tensors{ls::scatter_reduce(in[0], d, rows, in[1], "mean"),
                        ls::scatter_reduce(in[0], d, rows, in[1], "prod", false),
                        ls::index_put(in[0], first, in[1].select(0, 0), true), ls::prod(in[0], d), ls::flip(in[0], d)};
       })},
      {"views and their copies", along([](const Tensors& in, int d) {
         return Tensors{in[0].transpose(0, d).contiguous(), in[0].slice(d, 0, in[0].size(d), 2).clone(),
                        in[0].unsqueeze(d).clone(), in[0].select(d, 0).clone(), in[0].transpose(0, d).reshape({-1})};
       })},
  };
}

void check_matmul(const ls::Shape& a, const ls::Shape& b, ls::DType dtype) {
  const Table table = {
      {"matmul", [](const Tensors& in) { return Tensors{ls::matmul(in[0], in[1])}; }},
      {"matmul, left transposed",
       [](const Tensors& in) { return Tensors{ls::matmul(in[2].transpose(-1, -2), in[1])}; }},
      {"matmul, right transposed",
       [](const Tensors& in) { return Tensors{ls::matmul(in[0], in[3].transpose(-1, -2))}; }},
      {"matmul, both transposed",
       [](const Tensors& in) { return Tensors{ls::matmul(in[2].transpose(-1, -2), in[3].transpose(-1, -2))}; }},
      {"matmul to a place",
       [](const Tensors& in) {
         const ls::Shape shape = ls::matmul(in[0], in[1]).shape();
         Tensors out;
         for (std::int64_t offset = 0; offset < 16; offset += 5) {
           const ls::Tensor place =
               ls::zeros({shape.numel() + 16}, {.dtype = in[0].dtype()}).narrow(0, offset, shape.numel()).view(shape);
           ls::raw::matmul_out(in[0], in[1], place);
           out.push_back(place);
         }
         return out;
       }},
      {"linear",
       [](const Tensors& in) {
         if (in[3].dim() != 2) return Tensors{};
         return Tensors{ls::linear(in[0], in[3]), ls::linear(in[0], in[3], in[4])};
       }},
      {"products along with vectors",
       [](const Tensors& in) {
         return Tensors{ls::matmul(in[0], in[5]), ls::matmul(in[6], in[1]), ls::matmul(in[5], in[5])};
       }},
  };
  const auto turned = [](const ls::Tensor& x) { return x.transpose(-1, -2).contiguous(); };
  check_table(table, [&](double, double) {
    const ls::Tensor x = numbers(a, {.dtype = dtype}), y = numbers(b, {.dtype = dtype}, 2);
    return Tensors{x,
                   y,
                   turned(x),
                   turned(y),
                   numbers({y.size(-1)}, {.dtype = dtype}, 3),
                   numbers({x.size(-1)}, {.dtype = dtype}, 4),
                   numbers({y.size(-2)}, {.dtype = dtype}, 5)};
  });
}

// Instrumented programs compute large tensors of one dtype only.
bool is_left_out(ls::DType dtype, std::int64_t numel) {
  return LOCKSTEP_SLOWDOWN > 1 && numel > 1000 && dtype != ls::kFloat32;
}

}  // namespace

TEST_CASE(
    "the comparison detects an operation that depends on addresses, and one that depends on the number of threads") {
  const Threads restore;
  const Operation address = {
      "address", [](const Tensors& in) {
        return Tensors{in[0] + static_cast<int>(reinterpret_cast<std::uintptr_t>(in[0].raw_data()) % 64)};
      }};
  const Operation threads = {"threads", [](const Tensors& in) { return Tensors{in[0] + ls::num_threads()}; }};
  CHECK(contains(differing(address, {numbers({5})}), "1 threads, offset 3"));
  CHECK(!differing(threads, {numbers({40000})}).empty());
}

TEST_CASE(
    "pointwise functions, their derivatives and second derivatives: the same bits at every offset and with any "
    "threads") {
  for (const ls::DType dtype : both) {
    for (std::int64_t n : {1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 40, 1000, 70000}) {
      if (is_left_out(dtype, n)) continue;
      check_table(pointwise(), [&](double low, double high) {
        return Tensors{numbers_between(low, high, {n}, {.dtype = dtype}), numbers({n}, {.dtype = dtype}, 2),
                       numbers({n}, {.dtype = dtype}, 3)};
      });
    }
  }
}

TEST_CASE("elementwise operations: the same bits at every offset and with any threads") {
  for (const ls::DType dtype : both) {
    for (std::int64_t n : {1, 3, 4, 8, 15, 16, 17, 33, 40, 1000, 70000}) {
      if (is_left_out(dtype, n)) continue;
      check_table(elementwise(), [&](double low, double high) {
        return Tensors{numbers_between(low, high, {n}, {.dtype = dtype}),
                       numbers_between(low, high, {n}, {.dtype = dtype}, 2),
                       numbers_between(low, high, {n}, {.dtype = dtype}, 3)};
      });
    }
    check_table(elementwise(), [&](double low, double high) {  // broadcasting
      return Tensors{numbers_between(low, high, {300, 301}, {.dtype = dtype}),
                     numbers_between(low, high, {300, 301}, {.dtype = dtype}, 2)[0].expand({300, 301}),
                     numbers_between(low, high, {300, 301}, {.dtype = dtype}, 3)};
    });
  }
}

TEST_CASE("broadcast operands: the same bits at every offset and with any threads") {
  const Table table = {
      {"rows", [](const Tensors& in) {
         return Tensors{in[0] + in[1], in[1] * in[0], in[0] / in[2], ls::where(in[2] > 0, in[0], in[1])};
       }}};
  for (const ls::DType dtype : both) {
    for (const auto& entry : {std::pair<std::int64_t, std::int64_t>{3, 5}, {33, 70}, {1, 17}, {300, 257}, {70000, 1}}) {
      const auto& m = entry.first;
      const auto& n = entry.second;
      if (is_left_out(dtype, m * n)) continue;
      check_table(table, [&](double, double) {
        return Tensors{numbers({m, n}, {.dtype = dtype}), numbers({n}, {.dtype = dtype}, 2),
                       numbers({m, 1}, {.dtype = dtype}, 3)};
      });
    }
  }
}

TEST_CASE("integer arithmetic: the same bits at every offset and with any threads") {
  const Table table = {{"integers",
                        [](const Tensors& in) {
                          return Tensors{in[0] + in[1],  in[0] * in[1],        -in[0],
                                         ls::abs(in[0]), in[0] / in[1],        in[0] > in[1],
                                         ls::sum(in[0]), ls::cumsum(in[0], 0), ls::sort(in[0]).second};
                        },
                        1, 100}};
  for (const ls::DType dtype : {ls::kUInt8, ls::kInt32, ls::kInt64}) {
    for (std::int64_t n : {1, 7, 16, 33, 1000, 70000}) {
      check_table(table, [&](double low, double high) {
        return Tensors{numbers_between(low, high, {n}).to(dtype), numbers_between(low, high, {n}, {}, 2).to(dtype)};
      });
    }
  }
}

TEST_CASE("reductions, softmax, sorting and indexing: the same bits at every offset and with any threads") {
  for (const ls::DType dtype : both) {
    for (const ls::Shape& shape : {ls::Shape{1}, ls::Shape{2}, ls::Shape{7}, ls::Shape{16}, ls::Shape{17},
                                   ls::Shape{40}, ls::Shape{1000}, ls::Shape{70000}, ls::Shape{3, 5}, ls::Shape{33, 70},
                                   ls::Shape{300, 257}, ls::Shape{4, 30, 17}, ls::Shape{2, 200, 190}}) {
      if (is_left_out(dtype, shape.numel())) continue;
      check_table(reductions(), [&](double low, double high) {
        return Tensors{numbers_between(low, high, shape, {.dtype = dtype}),
                       numbers_between(low, high, shape, {.dtype = dtype}, 2)};
      });
    }
  }
}

TEST_CASE("a long sum is divided by its length alone: the same bits with any threads") {
  const Table table = {
      {"long", [](const Tensors& in) {
         return Tensors{ls::sum(in[0]), ls::mean(in[0]), ls::norm(in[0]), ls::var(in[0]), ls::max(in[0])};
       }}};
  for (const ls::DType dtype : both)
    check_table(table, [&](double, double) { return Tensors{numbers({600001}, {.dtype = dtype})}; });
}

TEST_CASE("products: the same bits at every offset and with any threads") {
  using ls::Shape;
  const std::vector<std::pair<Shape, Shape>> shapes = {
      {{1, 1}, {1, 1}},         {{3, 5}, {5, 4}},       {{7, 16}, {16, 9}},         {{33, 70}, {70, 19}},
      {{17, 33}, {33, 64}},     {{1, 5000}, {5000, 1}}, {{1, 700}, {700, 40}},      {{40, 700}, {700, 1}},
      {{64, 64}, {64, 64}},     {{100, 1}, {1, 100}},   {{128, 100}, {100, 10}},    {{512, 300}, {300, 40}},
      {{300, 301}, {301, 129}}, {{5, 6, 7}, {7, 8}},    {{5, 20, 30}, {5, 30, 21}}, {{9, 130, 40}, {9, 40, 100}}};
  for (const ls::DType dtype : both) {
    for (const auto& [a, b] : shapes) check_matmul(a, b, dtype);
  }
}

TEST_CASE("random numbers: the same bits with any threads") {
  const Threads restore;
  const auto draw = [](int threads) {
    ls::set_num_threads(threads);
    ls::manual_seed(11);
    return ls::cat({ls::rand({100001}), ls::randn({100003}),
                    ls::randn({70001}, {.dtype = ls::kFloat64}).to(ls::kFloat32),
                    ls::randint(0, 1000, {70000}).to(ls::kFloat32)});
  };
  const ls::Tensor want = draw(1);
  CHECK(same_bits(draw(2), want));
  CHECK(same_bits(draw(3), want));
}
