// Medians, quantiles, counts and cumulative products: values and gradients of PyTorch, special values, and errors.
#include "tests/support/gradcheck_table.h"

#include "tests/support/golden_case.h"

namespace {

const ls::StateDict& dict() {
  static const ls::StateDict values = golden("more");
  return values;
}

// Compares with PyTorch in f32 and f64.
void compare(const std::string& name, const std::function<ls::Tensor(const ls::Tensor&)>& function) {
  for (const std::string& tag : float_tags())
    check_case(
        dict(), name + "." + tag, {"x"}, [&](const Inputs& in) { return function(in[0]); }, "",
        tag == "f32" ? Tolerance{2e-5, 2e-6} : Tolerance{1e-12, 1e-13});
}

const std::pair<std::string, ls::Interpolation> kModes[] = {{"linear", ls::Interpolation::kLinear},
                                                            {"lower", ls::Interpolation::kLower},
                                                            {"higher", ls::Interpolation::kHigher},
                                                            {"nearest", ls::Interpolation::kNearest},
                                                            {"midpoint", ls::Interpolation::kMidpoint}};

std::vector<std::int64_t> integers(const ls::Tensor& x) { return x.to_vector<std::int64_t>(); }

}  // namespace

TEST_CASE("median gives PyTorch's values, indices and gradients") {
  compare("median", [](const ls::Tensor& x) { return ls::median(x); });
  compare("median_even", [](const ls::Tensor& x) { return ls::median(x); });
  for (const std::int64_t dim : {0, 1, -1})
    compare("median_" + std::to_string(dim), [=](const ls::Tensor& x) { return ls::median(x, dim, dim == 1).first; });
  CHECK(ls::equal(ls::median(dict().at("median_0.f64/x"), 1).second, dict().at("median_indices.f64/y")));
  const auto [values, at] = ls::median(dict().at("median_nan.f32/x"), 1);
  check_close(values, dict().at("median_nan.f32/y"), "values");
  CHECK(ls::equal(at, dict().at("median_nan.f32/at")));
}

TEST_CASE("median of NaN, of integers, of one element, and of equal ones") {
  const ls::Tensor x = ls::tensor({1.0, kNan, 2.0, kNan}, {.requires_grad = true});
  ls::median(x).backward();
  CHECK(x.grad().to_vector<double>() == std::vector<double>{0, 0.5, 0, 0.5});
  CHECK(ls::median(ls::tensor({4, 1, 3, 2})).item<std::int64_t>() == 2);
  CHECK(ls::median(ls::tensor(3.0), 0).first.item<double>() == 3);
  CHECK(integers(ls::median(ls::tensor({{2, 2, 2, 2}}), 1).second) == std::vector<std::int64_t>{1});
  CHECK(contains(error_of([] { ls::median(ls::zeros({0})); }), "median: (0) f32 cpu has no elements"));
  CHECK(contains(error_of([] { ls::median(ls::zeros({2, 0}), 1); }), "median: dimension 1 of (2, 0) f32 cpu"));
}

TEST_CASE("quantile gives PyTorch's values and gradients for every interpolation") {
  const auto positions = [](const ls::Tensor& x) {
    return ls::tensor({0.0, 0.1, 0.5, 0.83, 1.0}, {.dtype = x.dtype()});
  };
  for (const auto& [name, mode] : kModes) {
    compare("quantile_" + name,
            [&, kind = mode](const ls::Tensor& x) { return ls::quantile(x, 0.3, {.interpolation = kind}); });
    compare("quantile_dim_" + name, [&, kind = mode](const ls::Tensor& x) {
      return ls::quantile(x, positions(x), {.dim = 1, .keepdim = true, .interpolation = kind});
    });
  }
  compare("quantile_keep", [&](const ls::Tensor& x) { return ls::quantile(x, positions(x), {.keepdim = true}); });
  compare("quantile_last", [](const ls::Tensor& x) { return ls::quantile(x, 0.25, {.dim = -1}); });
  for (const std::string& tag : float_tags()) {
    const ls::Tensor& x = dict().at("median_nan." + tag + "/x");
    check_close(ls::quantile(x, ls::tensor({0.0, 0.6}, {.dtype = x.dtype()}), {.dim = 1}),
                dict().at("quantile_nan." + tag + "/y"), "NaN");
  }
}

TEST_CASE("quantile refuses other dtypes, positions outside [0, 1], and no elements") {
  CHECK(contains(error_of([] { ls::quantile(ls::tensor({1, 2}), 0.5); }), "quantile: x is (2) i64 cpu"));
  CHECK(contains(error_of([] { ls::quantile(ls::ones({2}), 1.5); }), "quantile: q is 1.5, expected 0 to 1"));
  CHECK(contains(error_of([] { ls::quantile(ls::ones({2}), kNan); }), "quantile: q is nan"));
  CHECK(contains(error_of([] { ls::quantile(ls::ones({0}), 0.5); }), "has no elements"));
  CHECK(contains(error_of([] { ls::quantile(ls::ones({2}), ls::ones({1, 1})); }), "expected a number or 1-D"));
}

TEST_CASE("unique gives PyTorch's values, positions and counts") {
  for (const std::string key : {"i64", "f32", "bool"}) {
    INFO(key);
    const std::string prefix = "unique/" + key + "/";
    const auto [values, inverse, counts] = ls::unique(dict().at(prefix + "x"));
    check_close(values, dict().at(prefix + "values"), "values");
    CHECK(ls::equal(inverse, dict().at(prefix + "inverse")));
    CHECK(inverse.shape() == dict().at(prefix + "x").shape());
    CHECK(ls::equal(counts, dict().at(prefix + "counts")));
  }
  CHECK(ls::unique(ls::tensor({kNan, 1.0, kNan})).counts.numel() == 3);
  CHECK(ls::unique(ls::zeros({0, 2})).values.shape() == ls::Shape{0});
  CHECK(ls::unique(ls::zeros({0, 2})).inverse.shape() == ls::Shape{0, 2});
}

TEST_CASE("cumprod gives PyTorch's values and gradients, also next to zeros") {
  for (const std::int64_t dim : {0, 1, -1})
    compare("cumprod_" + std::to_string(dim), [=](const ls::Tensor& x) { return ls::cumprod(x, dim); });
  CHECK(integers(ls::cumprod(ls::tensor({2, -3, 4}), 0)) == std::vector<std::int64_t>{2, -6, -24});
  CHECK(ls::cumprod(ls::tensor({true, false}), 0).dtype() == ls::kInt64);
  CHECK(ls::cumprod(ls::ones({0, 2}), 0).shape() == ls::Shape{0, 2});
  CHECK(ls::cumprod(ls::tensor(3.0), 0).item<double>() == 3);
  CHECK(ls::cumprod(ls::tensor({3.0, 0.5}).to(ls::kFloat16), 0).dtype() == ls::kFloat16);
  // In f64 inside, as in PyTorch: no product of a part overflows or vanishes.
  CHECK(ls::cumprod(ls::tensor({1e-30, 1e-30, 1e30, 1e30}), 0).to_vector<float>()[3] == doctest::Approx(1));
}

TEST_CASE("cumprod, median and quantile have the right first and second derivatives") {
  using gradcheck_table::check, gradcheck_table::curved;
  for (const std::int64_t dim : {0, 1, -1}) {
    check("cumprod", {{2, 3, 2}}, [=](const Inputs& in) { return curved(ls::cumprod(in[0], dim)); });
    check("median", {{2, 3, 2}}, [=](const Inputs& in) { return curved(ls::median(in[0], dim).first); });
    check("quantile", {{2, 3, 4}}, [=](const Inputs& in) { return curved(ls::quantile(in[0], 0.4, {.dim = dim})); });
  }
  const ls::Tensor mask = ls::tensor({1.0, 0.0, 1.0, 0.0, 1.0}, {.dtype = ls::kFloat64});
  check("cumprod", {{2, 5}}, [=](const Inputs& in) { return curved(ls::cumprod(in[0] * mask, 1)); });
  check("median", {{2, 3}}, [](const Inputs& in) { return curved(ls::median(curved(in[0]))); });
}

TEST_CASE("histc gives PyTorch's counts") {
  for (const std::string& tag : float_tags()) {
    INFO(tag);
    const std::string prefix = "histc." + tag + "/";
    const ls::Tensor& x = dict().at("median_0." + tag + "/x");
    const ls::TensorOptions options = {.dtype = x.dtype()};
    check_close(ls::histc(x, 7), dict().at(prefix + "own"), "own range");
    check_close(ls::histc(x, 6, -1, 0.5), dict().at(prefix + "range"), "range");
    check_close(ls::histc(ls::tensor({0.0, 0.25, 0.5, 0.75, 1.0, 1.5, -1.0}, options), 4, 0, 1),
                dict().at(prefix + "edges"), "edges");
    check_close(ls::histc(ls::full({3}, 2.0, options), 4), dict().at(prefix + "equal"), "equal elements");
  }
  CHECK(ls::sum(ls::histc(ls::tensor({kNan, 0.5}), 2, 0, 1)).item<double>() == 1);
  CHECK(contains(error_of([] { ls::histc(ls::ones({2}), 0); }), "histc: x is (2) f32 cpu, 0 bins from 0 to 0"));
  CHECK(contains(error_of([] { ls::histc(ls::tensor({1.0, kInf})); }), "is not finite"));
  CHECK(contains(error_of([] { ls::histc(ls::tensor({1, 2})); }), "expected floating point"));
}

TEST_CASE("bincount gives PyTorch's counts and sums") {
  const ls::Tensor &x = dict().at("bincount/x"), &weights = dict().at("bincount/weights");
  CHECK(ls::equal(ls::bincount(x, {}, 9), dict().at("bincount/y")));
  check_close(ls::bincount(x, weights), dict().at("bincount/weighted"), "f64");
  check_close(ls::bincount(x, weights.to(ls::kFloat32)), dict().at("bincount/weighted_f32"), "f32");
  CHECK(ls::bincount(x, x).dtype() == ls::kFloat64);
  CHECK(ls::bincount(ls::zeros({0}, {.dtype = ls::kInt64}), {}, 2).numel() == 2);
  CHECK(contains(error_of([] { ls::bincount(ls::tensor({1, -1})); }), "has the element -1, expected at least 0"));
  CHECK(contains(error_of([] { ls::bincount(ls::tensor({1.0})); }), "bincount: x is (1) f32 cpu"));
  CHECK(contains(error_of([] { ls::bincount(ls::tensor({1}), ls::ones({2})); }), "expected one for each element"));
}
