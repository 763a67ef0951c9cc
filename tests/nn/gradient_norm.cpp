// The tree of clip_grad_norm_: its definition, and the same bits from any parts.
#include "lockstep/nn/gradient_norm_internal.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "support.h"

namespace {

using Doubles = std::vector<double>;

// Pairs of neighbours, then pairs of pairs; an odd last number moves up.
double tree(Doubles values) {
  if (values.empty()) return 0;
  while (values.size() > 1) {
    Doubles sums;
    for (std::size_t i = 0; i < values.size(); i += 2)
      sums.push_back(i + 1 < values.size() ? values[i] + values[i + 1] : values[i]);
    values = std::move(sums);
  }
  return values[0];
}

// The sums of all lines, as tensor/ops/line_squares_internal.h defines them.
template <class T>
Doubles lines_of(const ls::Tensor& x) {
  constexpr std::size_t kElements = 64 / sizeof(T);
  std::vector<T> values = x.to_vector<T>();
  values.resize((values.size() + kElements - 1) / kElements * kElements);
  Doubles sums;
  for (std::size_t at = 0; at < values.size(); at += kElements) {
    double s[kElements];
    for (std::size_t i = 0; i < kElements; ++i) s[i] = static_cast<double>(values[at + i]) * values[at + i];
    for (std::size_t half = kElements / 2; half >= 4; half /= 2) {
      for (std::size_t i = 0; i < half; ++i) s[i] += s[i + half];
    }
    sums.push_back((s[0] + s[1]) + (s[2] + s[3]));
  }
  return sums;
}

bool same_number(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

// The ends of `ranks` shards of `lines` lines, of which some are empty.
std::vector<std::int64_t> random_ends(std::int64_t lines, int ranks) {
  std::vector<std::int64_t> ends = {0};
  for (int rank = 1; rank < ranks; ++rank) ends.push_back(ls::randint(0, lines + 1, {}).item<std::int64_t>());
  std::sort(ends.begin(), ends.end());
  ends.push_back(lines);
  return ends;
}

}  // namespace

TEST_CASE("the sum of squares of a gradient is the tree over its lines") {
  ls::manual_seed(1);
  for (const std::int64_t size : {0, 1, 7, 8, 16, 17, 64, 255 * 16, 256 * 16 - 1, 256 * 16, 256 * 16 + 1, 100'003}) {
    CAPTURE(size);
    const ls::Tensor x = ls::randn({size}), y = ls::randn({size}, {.dtype = ls::kFloat64});
    CHECK(same_number(nn::sum_of_squares(x).total(), tree(lines_of<float>(x))));
    CHECK(same_number(nn::sum_of_squares(y).total(), tree(lines_of<double>(y))));
    CHECK(nn::sum_of_squares(x).total() ==
          doctest::Approx(ls::sum(x.to(ls::kFloat64) * x.to(ls::kFloat64)).item<double>()).epsilon(1e-12));
  }
  const ls::Tensor matrix = ls::randn({50, 70}), half = matrix.to(ls::kBFloat16);
  CHECK(same_number(nn::sum_of_squares(matrix.transpose(0, 1)).total(),
                    nn::sum_of_squares(matrix.transpose(0, 1).contiguous()).total()));
  CHECK(same_number(nn::sum_of_squares(half).total(), nn::sum_of_squares(half.to(ls::kFloat32)).total()));
}

TEST_CASE("shards that start on lines have nodes that add up to the bits of the whole gradient") {
  ls::manual_seed(2);
  for (const ls::DType dtype : {ls::kFloat32, ls::kFloat64}) {
    const std::int64_t elements = dtype == ls::kFloat32 ? 16 : 8;
    for (const std::int64_t size : {std::int64_t{5}, 3 * elements, 700 * elements + 3, 2048 * elements}) {
      const ls::Tensor x = ls::randn({size}, {.dtype = dtype});
      const std::int64_t lines = (size + elements - 1) / elements;
      const double whole = nn::sum_of_squares(x).total();
      for (int ranks = 1; ranks <= 8; ++ranks) {
        for (int repetition = 0; repetition < 10; ++repetition) {
          const std::vector<std::int64_t> ends = random_ends(lines, ranks);
          nn::TreeSum sum;
          for (std::size_t rank = 0; rank + 1 < ends.size(); ++rank) {
            const std::int64_t begin = std::min(ends[rank] * elements, size),
                               end = std::min(ends[rank + 1] * elements, size);
            const nn::TreeSum part = nn::sum_of_squares(x.narrow(0, begin, end - begin), ends[rank]);
            CHECK(part.nodes().size() <= 2 * std::log2(std::max<double>(lines, 2)));
            for (const nn::TreeNode& node : part.nodes()) sum.add(node);
          }
          CHECK(same_number(sum.total(), whole));
        }
      }
    }
  }
}

TEST_CASE("clip_grad_norm_ adds the parameters in a tree too, and counts a parameter once") {
  ls::manual_seed(3);
  std::vector<nn::Parameter> parameters;
  Doubles squares;
  for (int i = 0; i < 7; ++i) {
    const nn::Parameter& p = parameters.emplace_back(ls::zeros({40 + i}));
    if (i != 2) p->set_grad(ls::randn({40 + i}));  // number 2 counts as 0
    squares.push_back(i == 2 ? 0 : tree(lines_of<float>(p->grad())));
  }
  const double norm = std::sqrt(tree(squares));
  CHECK(same_number(nn::clip_grad_norm_(parameters, 1e9), norm));
  parameters.push_back(parameters[1]);
  const ls::Tensor before = parameters[1]->grad().clone();
  CHECK(same_number(nn::clip_grad_norm_(parameters, 1.0), norm));
  CHECK(same_bits(parameters[1]->grad(), before * (1 / (norm + 1e-6))));
}
