// Parts of tensors: their elements by a closed form, and which parts are valid.
#include "lockstep/tensor/tensor_part.h"

#include <doctest/doctest.h>

#include <limits>

#include "tests/support/testing.h"

using ls::TensorPart;

namespace {

using Positions = std::vector<std::int64_t>;

Positions positions_of(const TensorPart& part) {
  Positions all;
  for (std::int64_t i = 0; i < part.numel; ++i) all.push_back(part.at(i));
  return all;
}

Positions positions_of_runs(const TensorPart& part) {
  Positions all;
  for (std::int64_t k = 0; k < part.runs(); ++k) {
    const auto [first, count] = part.run_at(k);
    CHECK(count > 0);
    for (std::int64_t i = 0; i < count; ++i) all.push_back(first + i);
  }
  return all;
}

// The elements of a slice by their coordinates: the slice has its share of each of `parts` blocks of the dimension.
Positions expected(const ls::Shape& shape, int dim, std::int64_t index, std::int64_t of, std::int64_t parts) {
  const std::int64_t size = shape[static_cast<std::size_t>(dim)], block = size / parts, piece = block / of;
  std::int64_t inner = 1;
  for (int d = dim + 1; d < shape.dim(); ++d) inner *= shape[static_cast<std::size_t>(d)];
  Positions all;
  for (std::int64_t at = 0; at < shape.numel(); ++at) {
    const std::int64_t in_block = at / inner % size % block;
    if (in_block >= index * piece && in_block < (index + 1) * piece) all.push_back(at);
  }
  return all;
}

}  // namespace

TEST_CASE("a slice has the elements with its coordinates, and the slices of a dimension have each element once") {
  struct Case {
    ls::Shape shape;
    int dim;
    std::int64_t of, parts;
  };
  for (const auto& [shape, dim, of, parts] : std::vector<Case>{{{8}, 0, 4, 1},
                                                               {{4, 6}, 0, 2, 1},
                                                               {{4, 6}, 1, 3, 1},
                                                               {{4, 6}, 1, 1, 1},
                                                               {{12, 5}, 0, 2, 3},
                                                               {{12, 5}, 0, 4, 3},
                                                               {{5, 12}, 1, 2, 3},
                                                               {{12, 1}, 0, 1, 3},
                                                               {{2, 6, 4}, 1, 3, 1},
                                                               {{2, 6, 4}, 1, 1, 2},
                                                               {{2, 6, 4, 3}, 2, 2, 2},
                                                               {{0, 6}, 1, 3, 1}}) {
    const std::string whole = shape.to_string();
    CAPTURE(whole);
    Positions all;
    for (std::int64_t index = 0; index < of; ++index) {
      const TensorPart part = TensorPart::slice(shape, dim, index, of, parts);
      const Positions own = positions_of(part);
      CHECK(own == expected(shape, dim, index, of, parts));
      CHECK(positions_of_runs(part) == own);
      CHECK(part.fits(shape.numel()));
      CHECK((shape.numel() == 0 || !part.fits(own.back())));  // a tensor without the part's last element
      CHECK(part.is_consecutive() == (own.empty() || own.back() - own.front() + 1 == std::ssize(own)));
      all.insert(all.end(), own.begin(), own.end());
    }
    std::ranges::sort(all);
    CHECK(all == positions_of(TensorPart::whole(shape)));
  }
}

TEST_CASE("every range of a slice has the range's elements, also where it begins or ends within a run") {
  const TensorPart slice = TensorPart::slice({4, 9}, 1, 1, 3), whole = TensorPart::whole({4, 9});
  for (std::int64_t from = 0; from <= slice.numel; ++from) {
    for (std::int64_t count = 0; count <= slice.numel - from; ++count) {
      const TensorPart part = slice.narrow(from, count);
      Positions want = positions_of(slice);
      want = Positions(want.begin() + from, want.begin() + from + count);
      CHECK(positions_of(part) == want);
      CHECK(positions_of_runs(part) == want);
      CHECK(part.fits(36));
      CHECK(whole.narrow(from, count).runs() == (count > 0 ? 1 : 0));
      CHECK(whole.narrow(from, count).at(0) == from);
    }
  }
  CHECK(slice.narrow(2, 8).narrow(3, 4) == slice.narrow(5, 4));
  CHECK(whole.narrow(4, 6).to_string() == "[4, 10)");
  CHECK(slice.narrow(1, 5).to_string() == "[1, 6) of runs of 3 at 3, 12, ...");
  CHECK(TensorPart().to_string() == "[0, 0)");
}

TEST_CASE("parts that no tensor has are refused") {
  CHECK(contains(error_of([] { TensorPart::slice({4, 6}, 2, 0, 1); }), "dimension 2 of the shape (4, 6)"));
  CHECK(contains(error_of([] { TensorPart::slice({4, 6}, 1, 3, 3); }), "slice 3 of 3; expected 0 to 2"));
  CHECK(contains(error_of([] { TensorPart::slice({4, 6}, 1, 0, 4); }), "divisible by 1 * 4"));
  CHECK(contains(error_of([] { TensorPart::slice({9, 6}, 0, 0, 2, 3); }), "divisible by 3 * 2"));
  CHECK(contains(error_of([] { TensorPart::whole({3}).narrow(2, 2); }), "elements [2, 4) of a part with 3"));
  CHECK(contains(error_of([] { TensorPart::whole({3}).narrow(-1, 2); }), "elements [-1, 1)"));
  const TensorPart good = {.first = 2, .run = 2, .stride = 6, .begin = 1, .numel = 5};  // 3, 8, 9, 14, 15
  CHECK(good.fits(16));
  CHECK_FALSE(good.fits(15));
  const auto refused = [&](const auto& change) {
    TensorPart part = good;
    change(part);
    return !part.fits(16);
  };
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
  for (std::int64_t TensorPart::*const field :
       {&TensorPart::first, &TensorPart::run, &TensorPart::stride, &TensorPart::begin, &TensorPart::numel}) {
    for (const std::int64_t value : {std::int64_t{-1}, -kLargest, kLargest, kLargest / 2 + 1})
      CHECK(refused([&](TensorPart& part) { part.*field = value; }));
  }
  CHECK(refused([](TensorPart& part) { part.stride = 1; }));  // runs that overlap
  CHECK(refused([](TensorPart& part) { part.run = 0; }));
}
