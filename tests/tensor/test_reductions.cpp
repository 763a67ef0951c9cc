// Reductions, cumulative sums and softmax compared with PyTorch, and on special values.
#include "tests/support/golden_case.h"

namespace {

using Ints = std::vector<std::int64_t>;

ls::Shape dims_of(const std::string& text) {
  ls::Shape dims;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    dims.push_back(std::stoll(text.substr(at, comma - at)));
    at = comma + 1;
  }
  return dims;
}

using Reduction = ls::Tensor (*)(const ls::Tensor&, const ls::Shape&, bool);
struct Named {
  std::string name;
  Reduction run;
};
const std::vector<Named> reductions = {
    {"sum", ls::sum},
    {"mean", ls::mean},
    {"norm", [](const ls::Tensor& x, const ls::Shape& dims, bool keep) { return ls::norm(x, 2, dims, keep); }},
    {"max", ls::amax},
    {"min", ls::amin},
    {"logsumexp", ls::logsumexp},
    {"var", [](const ls::Tensor& x, const ls::Shape& dims, bool keep) { return ls::var(x, dims, {.keepdim = keep}); }},
    {"var_biased", [](const ls::Tensor& x, const ls::Shape& dims, bool keep) {
       return ls::var(x, dims, {.correction = 0, .keepdim = keep});
     }}};

}  // namespace

TEST_CASE("reductions have PyTorch's values and gradients") {
  const ls::StateDict file = golden("ops");
  for (const std::string& tag : float_tags()) {
    for (const Named& reduction : reductions) {
      for (const std::string dims : {"1", "-1", "0,2", "0,1,2"}) {
        const std::string key = reduction.name + "/" + dims + "." + tag;
        if (tag == "f32" && dims != "1" && dims != "0,2") continue;
        check_case(
            file, key, {"x"}, [&](const Inputs& in) { return reduction.run(in[0], dims_of(dims), false); },
            "reduce." + tag);
      }
    }
    check_case(
        file, "var_keepdim/0,2." + tag, {"x"},
        [](const Inputs& in) {
          return ls::var(in[0], {0, 2}, {.keepdim = true});
        },
        "reduce." + tag);
    for (const std::string dim : {"0", "1", "-1"})
      check_case(
          file, "cumsum/" + dim + "." + tag, {"x"},
          [&](const Inputs& in) { return ls::cumsum(in[0], std::stoll(dim)); }, "reduce." + tag);
  }
}

TEST_CASE("argmax and argmin give PyTorch's positions, the first of equal ones") {
  const ls::StateDict file = golden("ops");
  for (const std::string& tag : float_tags()) {
    const ls::Tensor& x = file.at("reduce." + tag + "/x");
    for (const std::string dim : {"0", "1", "-1"}) {
      check_close(ls::argmax(x, std::stoll(dim)), file.at("argmax/" + dim + "." + tag + "/y"), dim);
      check_close(ls::argmin(x, std::stoll(dim)), file.at("argmin/" + dim + "." + tag + "/y"), dim);
    }
    check_close(ls::argmax(x), file.at("argmax/all." + tag + "/y"), "all");
    check_close(ls::argmin(x), file.at("argmin/all." + tag + "/y"), "all");
    check_close(ls::argmax(file.at("max_ties/amax." + tag + "/x"), 1), file.at("max_ties/argmax." + tag + "/y"),
                "ties");
  }
  CHECK(ls::argmax(ls::ones({2, 3}), 1, true).shape() == ls::Shape{2, 1});
}

TEST_CASE("equal maxima share the gradient evenly, over one dimension and over all") {
  const ls::StateDict file = golden("ops");
  for (const std::string& tag : float_tags()) {
    check_case(file, "max_ties/amax." + tag, {"x"}, [](const Inputs& in) { return ls::amax(in[0], {1}); });
    check_case(file, "max_ties/all." + tag, {"x"}, [](const Inputs& in) { return ls::max(in[0]); });
  }
}

TEST_CASE("p-norms, max along a dimension and std have PyTorch's values and gradients") {
  const ls::StateDict file = golden("ops");
  for (const std::string p : {"1", "3", "1.5", "0.5", "-1", "inf", "-inf"}) {
    const double power = std::stod(p);
    check_case(file, "norm_" + p + "/1.f64", {"x"}, [&](const Inputs& in) { return ls::norm(in[0], power, 1); });
    check_case(file, "norm_" + p + "/all.f64", {"x"}, [&](const Inputs& in) { return ls::norm(in[0], power); });
  }
  check_case(file, "max_dim/1.f64", {"x"}, [](const Inputs& in) { return ls::max(in[0], 1).first; });
  check_case(file, "min_dim/1.f64", {"x"}, [](const Inputs& in) { return ls::min(in[0], 1).first; });
  check_case(file, "std/1.f64", {"x"}, [](const Inputs& in) { return ls::std(in[0], 1); });
  check_case(file, "std/all.f64", {"x"}, [](const Inputs& in) { return ls::std(in[0]); });
  check_case(file, "std_biased/0,2.f64", {"x"}, [](const Inputs& in) {
    return ls::std(in[0], {0, 2}, {.correction = 0});
  });
  for (const std::string& tag : float_tags())
    check_case(file, "max_ties/max_dim." + tag, {"x"}, [](const Inputs& in) { return ls::max(in[0], 1).first; });
}

TEST_CASE("the gradient of a norm of 0 is 0") {
  for (const std::string& tag : float_tags())
    check_case(golden("ops"), "norm_zero." + tag, {"x"}, [](const Inputs& in) { return ls::norm(in[0], 2, {1}); });
}

TEST_CASE("logsumexp neither overflows nor makes NaN of -inf") {
  for (const std::string& tag : float_tags()) {
    check_case(golden("ops"), "logsumexp_large." + tag, {"x"},
               [](const Inputs& in) { return ls::logsumexp(in[0], 1); });
    check_case(golden("ops"), "logsumexp_minus_inf." + tag, {"x"},
               [](const Inputs& in) { return ls::logsumexp(in[0], 1); });
  }
  const ls::Tensor infinite = ls::full({2, 2}, -kInf);
  CHECK(ls::logsumexp(infinite, 1).to_vector<float>() == std::vector<float>{-INFINITY, -INFINITY});
  CHECK(ls::logsumexp(ls::tensor({1.0, kInf}), 0).item<float>() == kInf);
}

TEST_CASE("every maximum and minimum propagates NaN") {
  const ls::StateDict file = golden("ops");
  for (const std::string& tag : float_tags()) {
    const ls::Tensor& x = file.at("nan." + tag + "/x");
    check_close(ls::amax(x, {1}), file.at("nan." + tag + "/max"), "max");
    check_close(ls::amin(x, {1}), file.at("nan." + tag + "/min"), "min");
    check_close(ls::argmax(x, 1), file.at("nan." + tag + "/argmax"), "argmax");
    check_close(ls::argmin(x, 1), file.at("nan." + tag + "/argmin"), "argmin");
    check_close(ls::amax(x.t(), {0}), file.at("nan." + tag + "/max"), "max over columns");
  }
}

TEST_CASE("extremes and their first positions agree with a plain loop at any length, along rows and columns") {
  for (const std::int64_t n : {1, 2, 15, 16, 17, 63, 64, 65, 300, 4096, 9000, 70'000, 600'000}) {
    for (const bool with_nan : {false, true}) {
      ls::Tensor x = ls::randint(0, n / 2 + 1, {3, n}).to(ls::kFloat32);
      if (with_nan) x = ls::where(x == n / 4, std::numeric_limits<float>::quiet_NaN(), x);
      const ls::Tensor columns = x.t().contiguous();
      for (const bool largest : {true, false}) {
        const ls::Tensor values = largest ? ls::amax(x, {1}) : ls::amin(x, {1});
        const ls::Tensor places = largest ? ls::argmax(x, 1) : ls::argmin(x, 1);
        CHECK(ls::equal(places, largest ? ls::argmax(columns, 0) : ls::argmin(columns, 0)));
        CHECK(ls::allclose(values, largest ? ls::amax(columns, {0}) : ls::amin(columns, {0}), 0, 0, true));
        for (std::int64_t row = 0; row < 3; ++row) {
          const auto elements = x.select(0, row).to_vector<float>();
          const auto precedes = [&](float a, float b) { return b == b && (a != a || (largest ? a > b : a < b)); };
          const auto first = std::min_element(elements.begin(), elements.end(), precedes);
          CHECK(places.select(0, row).item<std::int64_t>() == first - elements.begin());
        }
      }
    }
  }
}

TEST_CASE("sums of the columns of many rows are exact where rounding is, and variances of columns are those of rows") {
  for (const std::int64_t n : {127, 128, 129, 300}) {
    for (const std::int64_t width : {33, 256, 2049}) {
      const ls::Tensor x = ls::randint(-8, 8, {n, width}).to(ls::kFloat32);
      CHECK(ls::equal(x.sum({0}), x.to(ls::kInt64).sum({0})));
      CHECK(ls::allclose(ls::var(x, {0}), ls::var(x.t(), {1}), 1e-5, 0));
    }
  }
}

TEST_CASE("any and all of numbers and bools, also of no elements") {
  const ls::Tensor x = ls::tensor({{0.0, 0.0, 1.0}, {0.0, -2.0, 3.0}});
  CHECK(ls::equal(x.any({0}), ls::tensor({false, true, true})));
  CHECK(ls::equal((x != 0).all({1}), ls::tensor({false, false})));
  CHECK(ls::equal(x.all({0}), ls::tensor({false, false, true})));
  CHECK(ls::equal(ls::any(ls::zeros({0, 2}), {0}), ls::tensor({false, false})));
  CHECK(ls::equal(ls::all(ls::zeros({0, 2}), {0}), ls::tensor({true, true})));
}

TEST_CASE("the sum of no elements is 0, its mean and variance NaN, its maximum an error") {
  const ls::StateDict file = golden("ops");
  for (const std::string& tag : float_tags()) {
    const ls::Tensor empty = ls::zeros({2, 0}, {.dtype = dtype_named(tag)});
    check_close(ls::sum(empty, {1}), file.at("empty." + tag + "/sum"), "sum");
    check_close(ls::mean(empty, {1}), file.at("empty." + tag + "/mean"), "mean");
    check_close(ls::var(empty, {1}), file.at("empty." + tag + "/var"), "var");
  }
  CHECK(ls::sum(ls::zeros({0})).item<float>() == 0);
  CHECK(std::isnan(ls::mean(ls::zeros({0})).item<float>()));
  CHECK(ls::sum(ls::zeros({0, 3}), {1}).shape() == ls::Shape{0});
  CHECK(ls::amax(ls::zeros({0, 3}), {1}).shape() == ls::Shape{0});
  CHECK(ls::norm(ls::zeros({0})).item<float>() == 0);
  CHECK(contains(error_of([] { ls::amax(ls::zeros({2, 0}), {1}); }), "amax: no elements to reduce in (2, 0) f32 cpu"));
  CHECK(contains(error_of([] { ls::argmin(ls::zeros({0})); }), "argmin"));
}

TEST_CASE("a variance of a single element is NaN, with correction 0 it is 0") {
  CHECK(std::isnan(ls::var(ls::ones({1})).item<float>()));
  CHECK(ls::var(ls::ones({1}), {}, {.correction = 0}).item<float>() == 0);
}

TEST_CASE("integers and bools are summed as i64") {
  const ls::StateDict file = golden("ops");
  const ls::Tensor& x = file.at("integer/x");
  check_close(ls::sum(x, {1}), file.at("integer/sum"), "i64");
  check_close(ls::sum(x.to(ls::kInt32), {1}), file.at("integer/sum_i32"), "i32");
  check_close(ls::sum(x > 0, {1}), file.at("integer/sum_bool"), "bool");
  check_close(ls::sum(ls::abs(x).to(ls::kUInt8), {1}), file.at("integer/sum_u8"), "u8");
  check_close(ls::cumsum(x, 1), file.at("integer/cumsum"), "cumsum");
  CHECK(ls::max(x).dtype() == ls::kInt64);
  CHECK(ls::max(ls::tensor({true, false})).item<bool>());
  CHECK(contains(error_of([&] { ls::mean(x); }), "mean: needs f32 or f64, got (2, 4) i64 cpu"));
}

TEST_CASE("keepdim keeps sizes of 1, and members equal the functions") {
  const ls::Tensor x = numbers({2, 3, 4});
  for (const Named& reduction : reductions) {
    CAPTURE(reduction.name);
    CHECK(reduction.run(x, {0, -1}, true).shape() == ls::Shape{1, 3, 1});
    CHECK(reduction.run(x, {0, -1}, false).shape() == ls::Shape{3});
    CHECK(reduction.run(x, {}, true).shape() == ls::Shape{1, 1, 1});
    CHECK(reduction.run(x, {}, false).dim() == 0);
    CHECK(same_bits(reduction.run(x, {2, 0}, false), reduction.run(x, {0, 2}, false)));
  }
  CHECK(same_bits(x.sum({1}), ls::sum(x, {1})));
  CHECK(same_bits(x.mean(), ls::mean(x)));
  CHECK(same_bits(x.amax({0}, true), ls::amax(x, {0}, true)));
  CHECK(same_bits(x.min(), ls::min(x)));
  CHECK(same_bits(x.var({2}), ls::var(x, {2})));
  CHECK(same_bits(x.norm(), ls::norm(x)));
  CHECK(same_bits(x.norm(3, {1}, true), ls::norm(x, 3, {1}, true)));
  CHECK(same_bits(x.std({1}), ls::std(x, {1})));
  CHECK(same_bits(x.amin({1}), ls::amin(x, {1})));
  CHECK(same_bits(x.max(1).second, ls::max(x, 1).second));
  CHECK(same_bits(x.argmax(1), ls::argmax(x, 1)));
  CHECK(same_bits(x.argmin(-1, true), ls::argmin(x, -1, true)));
}

TEST_CASE("0-d tensors reduce over no dimension, dimension 0 or -1") {
  const ls::Tensor x = ls::tensor(2.5);
  CHECK(ls::sum(x).item<float>() == 2.5f);
  CHECK(ls::sum(x, {0}).item<float>() == 2.5f);
  CHECK(ls::amax(x, {-1}).item<float>() == 2.5f);
  CHECK(ls::argmax(x, 0).item<int>() == 0);
  CHECK(ls::cumsum(x, 0).item<float>() == 2.5f);
  CHECK(ls::softmax(x, 0).item<float>() == 1);
  CHECK(ls::logsumexp(x, 0).item<float>() == 2.5f);
  CHECK(ls::sum(x, {0}, true).dim() == 0);
}

TEST_CASE("dimensions that do not exist or are given twice are refused by name") {
  const ls::Tensor x = ls::ones({2, 3});
  CHECK(contains(error_of([&] { ls::sum(x, {2}); }), "sum: dimension 2 is outside [-2, 2)"));
  CHECK(contains(error_of([&] { ls::mean(x, {0, -2}); }), "mean"));
  CHECK(contains(error_of([&] { ls::softmax(x, 2); }), "softmax: dimension 2"));
  CHECK(contains(error_of([&] { ls::cumsum(x, -3); }), "cumsum"));
  CHECK(contains(error_of([&] { ls::argmax(x, 5); }), "argmax"));
  CHECK(contains(error_of([] { ls::softmax(ls::tensor({1, 2}), 0); }), "softmax: needs f32 or f64"));
}

TEST_CASE("softmax and log_softmax have PyTorch's values and gradients on every dimension") {
  const ls::StateDict file = golden("layers");
  for (const std::string& tag : float_tags()) {
    for (const std::string dim : {"0", "1", "-1"}) {
      const auto check = [&](const std::string& name, auto function) {
        const std::string key = name + "_dim" + dim + "." + tag;
        if (file.contains(key + "/y"))
          check_case(file, key, {"x"}, [&](const Inputs& in) { return function(in[0], std::stoll(dim)); });
      };
      check("softmax", ls::softmax);
      check("log_softmax", ls::log_softmax);
    }
    check_case(file, "softmax_large." + tag, {"x"}, [](const Inputs& in) { return ls::softmax(in[0], -1); });
    check_case(file, "softmax_minus_inf." + tag, {"x"}, [](const Inputs& in) { return ls::softmax(in[0], -1); });
  }
}

TEST_CASE("softmax along an inner dimension agrees with the one along the last") {
  for (const ls::DType dtype : {ls::kFloat32, ls::kFloat64}) {
    const ls::Tensor x = numbers({5, 67, 3}, {.dtype = dtype}) * 20;
    check_close(ls::softmax(x, 1), ls::softmax(x.transpose(1, 2).contiguous(), 2).transpose(1, 2).contiguous(),
                "softmax");
    check_close(ls::log_softmax(x, 1), ls::log_softmax(x.transpose(1, 2).contiguous(), 2).transpose(1, 2).contiguous(),
                "log_softmax");
  }
}

TEST_CASE("a reduction of a strided view has the bits of its contiguous copy") {
  const ls::Tensor x = numbers({40, 50, 6}).permute({2, 0, 1});
  for (const Named& reduction : reductions) {
    CAPTURE(reduction.name);
    for (const ls::Shape& dims : {ls::Shape{}, ls::Shape{0}, ls::Shape{1}, ls::Shape{2}, ls::Shape{0, 2}})
      CHECK(same_bits(reduction.run(x, dims, false), reduction.run(x.contiguous(), dims, false)));
  }
}

TEST_CASE("long f32 sums stay close to the exact result") {
  const std::int64_t n = 1'000'003;
  const ls::Tensor tenth = ls::full({n}, 0.1);
  const double exact = static_cast<double>(0.1f) * static_cast<double>(n);
  const double bound = 64 * 0x1p-24;  // at most 64 additions in f32 before a partial sum joins an f64 one
  CHECK(std::abs(ls::sum(tenth).item<double>() - exact) <= exact * bound);
  CHECK(std::abs(ls::mean(tenth).item<double>() - static_cast<double>(0.1f)) <= 0.1 * bound);
  CHECK(std::abs(ls::sum(tenth.view({n, 1}).expand({n, 3}), {0})[1].item<double>() - exact) <= exact * bound);
  CHECK(std::abs(ls::sum(tenth.view({n, 1}).expand({n, 1}), {0})[0].item<double>() - exact) <= exact * bound);
  const double offset = 1000 * bound;  // of the mean, whose square is added to the variance
  CHECK(ls::var(tenth + 1000).item<double>() <= offset * offset);
}
