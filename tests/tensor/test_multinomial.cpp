// multinomial: frequencies, order without replacement, reproducibility, refused weights.
#include <set>

#include "tests/support/testing.h"

namespace {

using Ints = std::vector<std::int64_t>;

Ints ints(const ls::Tensor& t) { return t.to_vector<std::int64_t>(); }

// How often each of `classes` classes occurs.
std::vector<double> frequencies(const Ints& samples, std::size_t classes) {
  std::vector<double> counts(classes);
  for (const std::int64_t i : samples) counts[static_cast<std::size_t>(i)] += 1.0 / static_cast<double>(samples.size());
  return counts;
}

void check_frequencies(const Ints& samples, const std::vector<double>& want) {
  const std::vector<double> have = frequencies(samples, want.size());
  const double error = 5 * 0.5 / std::sqrt(static_cast<double>(samples.size()));  // five standard deviations at most
  for (std::size_t i = 0; i < want.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(have[i] - want[i]) <= (want[i] == 0 ? 0 : error));
  }
}

}  // namespace

TEST_CASE("with replacement, classes occur in proportion to their weights, and those of weight 0 never") {
  ls::manual_seed(3);
  const ls::Tensor weights = ls::tensor({0.0, 1.0, 0.0, 5.0, 2.0, 0.0});
  const ls::Tensor samples = ls::multinomial(weights, 40000, true);
  CHECK(samples.shape() == ls::Shape{40000});
  CHECK(samples.dtype() == ls::kInt64);
  check_frequencies(ints(samples), {0, 0.125, 0, 0.625, 0.25, 0});
}

TEST_CASE("each row of weights is a distribution of its own") {
  ls::manual_seed(4);
  const ls::Tensor weights = ls::tensor({{3.0, 1.0, 0.0}, {0.0, 0.0, 7.0}}, {.dtype = ls::kFloat64});
  const ls::Tensor samples = ls::multinomial(weights, 10000, true);
  REQUIRE(samples.shape() == ls::Shape{2, 10000});
  check_frequencies(ints(samples[0]), {0.75, 0.25, 0});
  CHECK(ints(samples[1]) == Ints(10000, 2));
  CHECK(ls::multinomial(ls::ones({0, 3}), 2, true).shape() == ls::Shape{0, 2});
}

TEST_CASE("without replacement the samples of a row differ, and follow one draw after another") {
  ls::manual_seed(5);
  const ls::Tensor samples = ls::multinomial(ls::tensor({1.0, 0.0, 2.0, 5.0}).expand({20000, 4}), 2);
  const Ints first = ints(samples.select(1, 0)), second = ints(samples.select(1, 1));
  check_frequencies(first, {0.125, 0, 0.25, 0.625});
  // P(second = 0) = 1/4 1/6 + 5/8 1/3, and so on
  check_frequencies(second, {0.25, 0, 1.0 / 8 * 2 / 7 + 5.0 / 8 * 2 / 3, 1.0 / 8 * 5 / 7 + 2.0 / 8 * 5 / 6});
  for (std::size_t i = 0; i < first.size(); ++i) REQUIRE(first[i] != second[i]);
  const Ints all = ints(ls::multinomial(ls::ones({50}), 50));
  CHECK(std::set<std::int64_t>(all.begin(), all.end()).size() == 50);
}

TEST_CASE("the seed and the micro-batch determine the samples, and later draws differ") {
  const ls::Tensor weights = ls::rand({64});
  for (const bool replacement : {false, true}) {
    const auto draw = [&] { return ints(ls::multinomial(weights, 20, replacement)); };
    ls::manual_seed(6);
    const Ints first = draw(), second = draw();
    CHECK(first != second);
    ls::manual_seed(6);
    CHECK(draw() == first);
    CHECK(draw() == second);
    ls::manual_seed(6);
    const ls::random::MicroBatchGuard guard(1);
    CHECK(draw() != first);
  }
}

TEST_CASE("extreme weights give indices in range") {
  ls::manual_seed(7);
  const double tiny = std::numeric_limits<double>::denorm_min();
  const ls::TensorOptions f64 = {.dtype = ls::kFloat64};
  for (const bool replacement : {false, true}) {
    CHECK(ints(ls::multinomial(ls::tensor({0.0, tiny, 0.0}, f64), 1, replacement)) == Ints{1});
    CHECK(ints(ls::multinomial(ls::tensor({0.0, 1e300, 0.0}, f64), 1, replacement)) == Ints{1});
  }
  check_frequencies(ints(ls::multinomial(ls::tensor({1e300, 1e300}, f64), 10000, true)), {0.5, 0.5});
  CHECK(ints(ls::multinomial(ls::tensor({0.0, 1.0}).to(ls::kBFloat16), 2, true)) == Ints{1, 1});
}

TEST_CASE("weights that are no distribution are refused with the row and the class") {
  const auto error = [](const ls::Tensor& weights, std::int64_t samples, bool replacement) {
    return error_of([&] { ls::multinomial(weights, samples, replacement); });
  };
  CHECK(error(ls::tensor({{1.0, 1.0}, {1.0, -2.0}}), 1, true) ==
        "multinomial: the weight of class 1 in row 1 is -2, expected a finite number of at least 0");
  CHECK(contains(error(ls::tensor({1.0, kNan}), 1, true), "class 1 in row 0 is nan"));
  CHECK(contains(error(ls::tensor({1.0, kInf}), 1, true), "class 1 in row 0 is inf"));
  CHECK(contains(error(ls::tensor({1.5e308, 1.5e308}, {.dtype = ls::kFloat64}), 1, true), "add up to inf"));
  CHECK(error(ls::zeros({3}), 1, true) ==
        "multinomial: the weights of row 0 add up to 0, expected a positive, finite number");
  CHECK(
      contains(error(ls::tensor({1.0, 0.0, 3.0}), 3, false), "3 samples without replacement from row 0, which has 2"));
  CHECK(contains(error(ls::ones({3}), 0, true), "0 samples were requested"));
  CHECK(
      contains(error(ls::ones({2, 2, 2}), 1, true), "the weights are (2, 2, 2) f32 cpu, expected floating point and"));
  CHECK(contains(error(ls::ones({3}, {.dtype = ls::kInt64}), 1, true), "i64"));
}
