// Products of elements, mean and variance together, normalisation and cosines: PyTorch's values and gradients.
#include <cmath>

#include "tests/support/golden_case.h"

TEST_CASE("prod has PyTorch's values and gradients, also for no, one and several zeros") {
  const ls::StateDict file = golden("tensor_ops");
  for (const std::string name : {"prod", "prod_zero", "prod_zeros"}) {
    check_case(file, name, {"x"}, [](const Inputs& in) { return ls::prod(in[0], 1); });
    check_case(file, name + "_all", {"x"}, [](const Inputs& in) { return ls::prod(in[0]); });
    check_case(file, name + "_keepdim", {"x"}, [](const Inputs& in) { return in[0].prod(0, true); });
  }
  CHECK(ls::equal(ls::prod(ls::zeros({2, 0}, {.dtype = ls::kFloat32}), 1), file.at("prod_empty")));
  for (const std::int64_t n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17}) {
    std::int64_t want = 1;
    for (std::int64_t i = 1; i <= n; ++i) want *= i;
    CHECK(ls::prod(ls::arange(1, n + 1)).item<std::int64_t>() == want);
  }
  const ls::Tensor near_one = ls::exp(0.01 * ls::randn({600'000}));
  const double product = ls::prod(near_one.to(ls::kFloat64)).item<double>();
  CHECK(ls::prod(near_one).item<double>() == doctest::Approx(product).epsilon(1e-3));
  CHECK(std::log(product) == doctest::Approx(near_one.to(ls::kFloat64).log().sum().item<double>()).epsilon(1e-9));
  CHECK(ls::prod(ls::tensor({true, true})).dtype() == ls::kInt64);
  CHECK(ls::prod(ls::tensor({200, 2}, {.dtype = ls::kUInt8})).item<int>() == 400);
  CHECK(ls::prod(ls::tensor({1.5, 2.0}, {.dtype = ls::kHalf})).dtype() == ls::kHalf);
  CHECK(ls::prod(ls::tensor(3.0)).item<double>() == 3);
  const ls::Tensor x = ls::ones({1, 2}), y = ls::prod(x, 0);  // a copy, also of one element
  y.fill_(5);
  CHECK(x[0][0].item<double>() == 1);
  CHECK(contains(error_of([&] { ls::prod(x, 2); }), "prod: dimension 2 is outside"));
}

TEST_CASE("var_mean, std_mean, normalize and cosine_similarity have PyTorch's values and gradients") {
  const ls::StateDict file = golden("tensor_ops");
  const auto both = [](const std::pair<ls::Tensor, ls::Tensor>& pair) { return ls::stack({pair.first, pair.second}); };
  check_case(file, "var_mean", {"x"}, [&](const Inputs& in) { return both(ls::var_mean(in[0], 1)); });
  check_case(file, "std_mean", {"x"}, [&](const Inputs& in) {
    return both(ls::std_mean(in[0], {0, 1}, {.correction = 0}));
  });
  check_case(file, "normalize", {"x"}, [](const Inputs& in) { return ls::normalize(in[0]); });
  check_case(file, "normalize_3", {"x"}, [](const Inputs& in) { return ls::normalize(in[0], 3, 0); });
  check_case(file, "cosine_similarity", {"a", "b"},
             [](const Inputs& in) { return ls::cosine_similarity(in[0], in[1]); });
  CHECK(ls::equal(ls::normalize(ls::zeros({2, 2})), ls::zeros({2, 2})));
  const ls::Tensor x = ls::tensor({{1.0, 0.0}, {kNan, 3.0}});
  CHECK(ls::count_nonzero(x).item<int>() == 3);
  CHECK(ls::count_nonzero(x, 1).to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 2});
}
