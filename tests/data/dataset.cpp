#include <numeric>

#include "support.h"

using namespace ls::data;

TEST_CASE("TensorDataset gives row i of both tensors, and shares their memory") {
  const ls::Tensor data = ls::arange(12).reshape({4, 3}), target = ls::arange(4);
  const TensorDataset set(data, target);
  CHECK(set.size() == 4);
  const auto [x, y] = set.get(2);
  CHECK(x.to_vector<std::int64_t>() == Rows{6, 7, 8});
  CHECK(y.item<int>() == 2);
  CHECK(x.data<std::int64_t>() == data.data<std::int64_t>() + 6);
}

TEST_CASE("a batch of a TensorDataset is gathered from its rows, and equals stacking them one by one") {
  const TensorDataset set(numbers({5, 2, 3}).transpose(1, 2), numbers({5, 1}, {.dtype = ls::kFloat64}));
  const Rows rows{3, 0, 3, 4};
  const Example gathered = set.get_batch(rows), stacked = stack_examples(set.get_each(rows));
  CHECK(gathered.input.shape() == ls::Shape{4, 3, 2});
  CHECK(same_bits(gathered.input, stacked.input));
  CHECK(same_bits(gathered.target, stacked.target));
}

TEST_CASE("a TensorDataset on another device gives batches there") {
  const TensorDataset set(ls::arange(6).reshape({3, 2}).to("cpu:1"), ls::arange(3).to("cpu:2"));
  const Example batch = set.get_batch(Rows{2, 0});
  CHECK(batch.input.device() == ls::Device("cpu:1"));
  CHECK(batch.target.device() == ls::Device("cpu:2"));
  CHECK(batch.input.to("cpu").to_vector<std::int64_t>() == Rows{4, 5, 0, 1});
}

TEST_CASE("batches have no history, whatever tensors the data set holds") {
  const TensorDataset set(numbers({4, 2}, {.requires_grad = true}), numbers({4}));
  CHECK_FALSE(set.get_batch(Rows{0, 1}).input.requires_grad());
  CHECK_FALSE(stack_examples(set.get_each(Rows{0, 1})).input.requires_grad());
}

TEST_CASE("TensorDataset names the rows that do not match") {
  CHECK(contains(error_of([] {
                   TensorDataset(ls::ones({3, 2}), ls::ones({4}));
                 }),
                 "data is (3, 2) f32 cpu, target is (4) f32 cpu"));
  CHECK(contains(error_of([] { TensorDataset(ls::ones({3, 2}), ls::Tensor()); }), "target tensor is undefined"));
  CHECK(contains(error_of([] { TensorDataset(ls::ones({}), ls::ones({})); }), "differ in rows"));
  const TensorDataset set(ls::ones({3, 2}), ls::ones({3}));
  CHECK(contains(error_of([&] { set.get(3); }), "index 3 is outside [0, 3)"));
  CHECK(contains(error_of([&] { set.get(-1); }), "index -1"));
  CHECK(contains(error_of([&] { set.get_batch(Rows{0, 7}); }), "index 7"));
}

TEST_CASE("Subset gives the chosen examples, also of a Subset") {
  auto set = std::make_shared<Counting>(10);
  auto some = std::make_shared<Subset>(set, Rows{9, 1, 5});
  CHECK(some->size() == 3);
  CHECK(some->get(2).input.item<int>() == 5);
  const Subset fewer(some, Rows{2, 0});
  CHECK(fewer.get_batch(Rows{1, 0}).input.to_vector<std::int64_t>() == Rows{9, 5});
  CHECK(contains(error_of([&] { Subset(set, Rows{10}); }), "index 10 is outside [0, 10)"));
  CHECK(contains(error_of([&] { some->get(3); }), "index 3 is outside [0, 3)"));
}

TEST_CASE("random_split gives every example to exactly one part, determined by size, lengths and seed alone") {
  auto set = std::make_shared<Counting>(10);
  const auto parts = random_split(set, {7, 0, 3}, 4);
  REQUIRE(parts.size() == 3);
  CHECK(parts[0]->size() == 7);
  CHECK(parts[1]->size() == 0);
  Rows joined = parts[0]->indices();
  joined.insert(joined.end(), parts[2]->indices().begin(), parts[2]->indices().end());
  CHECK(joined == permutation(10, 4));  // as PyTorch splits its randperm
  CHECK(random_split(set, {7, 3}, 5)[0]->indices() != parts[0]->indices());
}

TEST_CASE("random_split by fractions gives PyTorch's parts, with the seed of manual_seed unless one is given") {
  const ls::StateDict expected = golden("options");
  const auto check = [&](std::int64_t size, const SplitLengths& fractions, std::int64_t seed) {
    auto set = std::make_shared<Counting>(size);
    ls::manual_seed(static_cast<std::uint64_t>(seed));
    const auto parts = random_split(set, fractions);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const std::string key = "split/" + std::to_string(size) + "/" + std::to_string(seed) + "/" + std::to_string(i);
      CHECK_MESSAGE(parts[i]->indices() == expected.at(key).to_vector<std::int64_t>(), key);
    }
  };
  check(10, {0.7, 0.3}, 42);
  check(11, {0.5, 0.25, 0.25}, 1);
  check(7, std::vector<double>(10, 0.1), 3);
  auto set = std::make_shared<Counting>(10);
  CHECK(random_split(set, {0.7, 0.3}, 42)[0]->indices() != random_split(set, {0.7, 0.3})[0]->indices());
}

TEST_CASE("random_split refuses fractions that do not add up to 1") {
  auto set = std::make_shared<Counting>(10);
  CHECK(error_of([&] { random_split(set, {0.5, 0.4}); }) == "random_split: the fractions add up to 0.9, expected 1");
  CHECK(contains(error_of([&] { random_split(set, {0.7, 0.6}); }), "fractions to 1; one is 0.6"));
  CHECK(contains(error_of([&] { random_split(set, {-0.5, 1.5}); }), "one is -0.5"));
  CHECK(contains(error_of([&] { random_split(set, {0.5, 5}); }), "1 of 2 lengths are fractions"));
  const std::int64_t rest = 7;
  CHECK(random_split(set, {rest, 3})[0]->size() == 7);
  CHECK(random_split(set, std::vector<int>{4, 6})[1]->size() == 6);
}

TEST_CASE("random_split refuses lengths that do not add up to the data set") {
  auto set = std::make_shared<Counting>(10);
  CHECK(contains(error_of([&] { random_split(set, {7, 2}); }), "lengths add up to 9, the data set has 10"));
  CHECK(contains(error_of([&] { random_split(set, {7, 4}); }), "one is 4"));
  CHECK(contains(error_of([&] { random_split(set, {11, -1}); }), "one is 11"));
}

TEST_CASE("stacking names the first example that differs") {
  const std::vector<ls::Tensor> rows{ls::ones({2}), ls::ones({2}), ls::ones({3})};
  CHECK(
      contains(error_of([&] { stack_rows(rows); }), "example 0 of the batch is (2) f32 cpu, example 2 is (3) f32 cpu"));
  const std::vector<ls::Tensor> types{ls::ones({2}), ls::ones({2}).to(ls::kFloat64)};
  CHECK(contains(error_of([&] { stack_rows(types); }), "example 1 is (2) f64 cpu"));
  CHECK(contains(error_of([] { stack_rows({}); }), "has no examples"));
}

TEST_CASE("a member that no example has stays undefined, and one that only some have is an error") {
  CHECK_FALSE(stack_examples(std::vector<Example>{{ls::ones({2}), {}}, {ls::ones({2}), {}}}).target.defined());
  CHECK(contains(error_of([] {
                   stack_examples(std::vector<Example>{{ls::ones({2}), ls::ones({})}, {ls::ones({2}), {}}});
                 }),
                 "1 of 2 tensors are undefined"));
}

namespace {
struct Triple {
  ls::Tensor a, b, c;
};
struct Single {
  ls::Tensor only;
};
struct WithName {
  ls::Tensor image;
  std::string name;
};
struct WithArray {
  ls::Tensor both[2];
};
struct Six {
  ls::Tensor a, b, c, d, e, f;
};
struct Seven {
  ls::Tensor a, b, c, d, e, f, g;
};
}  // namespace

TEST_CASE("only tensors and aggregates of one to six tensors stack without a collate function") {
  static_assert(kStackable<ls::Tensor> && kStackable<Example> && kStackable<Single> && kStackable<Triple> &&
                kStackable<Six>);
  static_assert(!kStackable<WithName> && !kStackable<WithArray> && !kStackable<Seven> && !kStackable<int> &&
                !kStackable<std::vector<ls::Tensor>> && !kStackable<std::string>);
  const Triple batch = stack_examples(std::vector<Triple>{{ls::tensor(1), ls::tensor(2), ls::tensor(3)},
                                                          {ls::tensor(4), ls::tensor(5), ls::tensor(6)}});
  CHECK(batch.a.to_vector<std::int64_t>() == Rows{1, 4});
  CHECK(batch.c.to_vector<std::int64_t>() == Rows{3, 6});
}

TEST_CASE("ConcatDataset has the examples of all parts in order, also in batches") {
  const auto part = [](std::int64_t first, std::int64_t count) {
    return std::make_shared<TensorDataset>(ls::arange(first, first + count), ls::arange(first, first + count));
  };
  const ConcatDataset all({part(0, 3), part(3, 0), part(3, 2)});
  CHECK(all.size() == 5);
  for (std::int64_t i = 0; i < 5; ++i) CHECK(all.get(i).input.item<std::int64_t>() == i);
  CHECK(all.get_batch(Rows{4, 0, 3}).target.to_vector<std::int64_t>() == Rows{4, 0, 3});
  CHECK(contains(error_of([&] { all.get(5); }), "ConcatDataset"));
  CHECK(contains(error_of([] { ConcatDataset({}); }), "there are no data sets"));
  CHECK(contains(error_of([&] { ConcatDataset({part(0, 1), nullptr}); }), "a data set is null"));
}
