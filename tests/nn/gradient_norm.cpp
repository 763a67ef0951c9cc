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

TEST_CASE("slices of columns: a tree over each slice's own lines, from any shards of it, and a tree over the slices") {
  ls::manual_seed(4);
  const ls::Shape shape = {24, 40};
  const ls::Tensor x = ls::randn(shape), ones = ls::ones(shape);
  for (const std::int64_t of : {2, 4}) {
    CAPTURE(of);
    Doubles squares;
    nn::TreeSum sum, sum_of_ones;
    for (std::int64_t index = 0; index < of; ++index) {
      const ls::TensorPart slice = ls::TensorPart::slice(shape, 1, index, of);
      const auto own = [&](const ls::Tensor& t) {
        return t.narrow(1, index * 40 / of, 40 / of).contiguous().flatten();
      };
      squares.push_back(tree(lines_of<float>(own(x))));
      const std::int64_t lines = 60 / of;  // of 24 * 40 / of elements
      nn::TreeSum parameter, parameter_of_ones;
      for (const auto& [from, to] :
           {std::pair<std::int64_t, std::int64_t>{0, 7 * 16}, {7 * 16, 7 * 16}, {7 * 16, 960 / of}}) {
        const ls::TensorPart shard = slice.narrow(from, to - from);
        const nn::Lines at = nn::lines_of(shard, ls::kFloat32);
        CHECK(at.begin == (from == to ? 0 : from / 16));
        CHECK(at.end == (from == to ? 0 : from == 0 ? 7 : lines));
        const nn::TreeSum part = nn::sum_of_squares(own(x).narrow(0, from, to - from), at.begin);
        const std::vector<nn::TreeNode> nodes = nn::nodes_of(at);
        REQUIRE(nodes.size() == part.nodes().size());
        for (std::size_t i = 0; i < nodes.size(); ++i) {
          CHECK(nodes[i].first == part.nodes()[i].first);
          CHECK(nodes[i].level == part.nodes()[i].level);
          parameter.add(part.nodes()[i]);
        }
        const nn::TreeSum part_of_ones = nn::sum_of_squares(own(ones).narrow(0, from, to - from), at.begin);
        for (const nn::TreeNode& node : part_of_ones.nodes()) parameter_of_ones.add(node);
      }
      CHECK(same_number(parameter.total(), squares.back()));
      CHECK(same_number(parameter.total(), nn::sum_of_squares(own(x)).total()));
      sum.add({.first = index, .level = 0, .sum = parameter.total()});
      sum_of_ones.add({.first = index, .level = 0, .sum = parameter_of_ones.total()});
    }
    CHECK(same_number(sum.total(), tree(squares)));
    CHECK(sum_of_ones.total() == 960);
    CHECK(sum.total() == doctest::Approx(nn::sum_of_squares(x).total()).epsilon(1e-12));
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
