// DataLoader without workers: options, order, epochs, resuming within an epoch.
#include <algorithm>
#include <iterator>

#include "support.h"

using namespace ls::data;

TEST_CASE("a loader gives the examples in order, and a smaller batch at the end") {
  DataLoader loader(std::make_shared<Counting>(7), {.batch_size = 3});
  CHECK(loader.size() == 3);
  CHECK(epoch_of(loader) == std::vector<Rows>{{0, 1, 2}, {3, 4, 5}, {6}});
  CHECK(epoch_of(loader) == std::vector<Rows>{{0, 1, 2}, {3, 4, 5}, {6}});
}

TEST_CASE("drop_last omits the last batch if it is not full") {
  DataLoader loader(std::make_shared<Counting>(7), {.batch_size = 3, .drop_last = true});
  CHECK(loader.size() == 2);
  CHECK(epoch_of(loader) == std::vector<Rows>{{0, 1, 2}, {3, 4, 5}});
}

TEST_CASE("without options a batch is one example") {
  DataLoader loader(std::make_shared<Counting>(2));
  CHECK(loader.size() == 2);
  CHECK(epoch_of(loader) == std::vector<Rows>{{0}, {1}});
}

TEST_CASE("a loader over an empty data set gives no batch") {
  DataLoader empty(std::make_shared<Counting>(0), {.batch_size = 3, .shuffle = true});
  CHECK(empty.size() == 0);
  CHECK(epoch_of(empty).empty());
  DataLoader small(std::make_shared<Counting>(2), {.batch_size = 3, .drop_last = true});
  CHECK(epoch_of(small).empty());
}

TEST_CASE("a loader's iterator at the end of the epoch has no batch, and says so") {
  DataLoader loader(std::make_shared<Counting>(3), {.batch_size = 4, .drop_last = true});
  auto iterator = loader.begin();
  CHECK(iterator == loader.end());
  CHECK(contains(error_of([&] { static_cast<void>(*iterator); }), "end of the epoch"));
}

TEST_CASE("shuffling depends on seed and epoch alone, and every epoch has its own order") {
  auto set = std::make_shared<Counting>(20);
  DataLoader a(set, {.batch_size = 20, .shuffle = true, .seed = 3}),
      b(set, {.batch_size = 20, .shuffle = true, .seed = 3});
  ls::manual_seed(1);
  const Rows first = epoch_of(a)[0], second = epoch_of(a)[0];
  ls::manual_seed(2);
  CHECK(epoch_of(b)[0] == first);
  CHECK(epoch_of(b)[0] == second);
  CHECK(first != second);
  CHECK(first == permutation(20, 3));
  CHECK(second == permutation(20, 4));
}

TEST_CASE("set_epoch on the caller's sampler takes effect in the loader") {
  auto sampler = std::make_shared<DistributedSampler>(12, 2, 1, DistributedSamplerOptions{.seed = 1});
  DataLoader loader(std::make_shared<Counting>(12), {.batch_size = 6, .sampler = sampler});
  const Rows zero = epoch_of(loader)[0];
  CHECK(epoch_of(loader)[0] != zero);
  sampler->set_epoch(0);
  CHECK(epoch_of(loader)[0] == zero);
  CHECK(loader.epoch() == 1);
}

TEST_CASE("a batch sampler determines the examples of a batch") {
  auto sampler = std::make_shared<MicroBatchSampler>(
      8, MicroBatchSamplerOptions{.micro_batches = 2, .batch_size = 2, .shuffle = false});
  DataLoader loader(std::make_shared<Counting>(8), {.batch_sampler = sampler});
  CHECK(loader.size() == 2);
  CHECK(epoch_of(loader) == std::vector<Rows>{{0, 2, 1, 3}, {4, 6, 5, 7}});
  CHECK(sampler->epoch() == 1);
  loader.set_epoch(5);
  CHECK(sampler->epoch() == 5);
}

TEST_CASE("a loader resumes in the middle of an epoch with the remaining batches, once") {
  auto set = std::make_shared<Counting>(20);
  DataLoader whole(set, {.batch_size = 3, .shuffle = true}), resumed(set, {.batch_size = 3, .shuffle = true});
  whole.set_epoch(4);
  const auto four = epoch_of(whole), five = epoch_of(whole);
  resumed.set_epoch(4);
  resumed.skip(5);
  CHECK(epoch_of(resumed) == std::vector<Rows>(four.begin() + 5, four.end()));
  CHECK(epoch_of(resumed) == five);
  resumed.skip(1000);
  CHECK(epoch_of(resumed).empty());
}

TEST_CASE("leaving the loop early ends the epoch") {
  DataLoader loader(std::make_shared<Counting>(9), {.batch_size = 2, .shuffle = true});
  for (const Example& batch : loader) {
    CHECK(batch.input.defined());
    break;
  }
  CHECK(loader.epoch() == 1);
  CHECK(epoch_of(loader).size() == 5);
}

TEST_CASE("skipped batches are never loaded") {
  static int made;
  made = 0;
  struct Counted : Counting {
    using Counting::Counting;
    Example get(std::int64_t index) const override {
      ++made;
      return Counting::get(index);
    }
  };
  DataLoader loader(std::make_shared<Counted>(10), {.batch_size = 2});
  loader.skip(4);
  CHECK(epoch_of(loader) == std::vector<Rows>{{8, 9}});
  CHECK(made == 2);
}

namespace {
struct Labelled {
  ls::Tensor image;
  std::string name;
};
struct Names : BasicDataset<Labelled> {
  std::int64_t size() const override { return 3; }
  Labelled get(std::int64_t index) const override { return {ls::tensor(index), std::to_string(index)}; }
};
}  // namespace

TEST_CASE("a data set of any aggregate works with a custom collate function") {
  DataLoader loader(std::make_shared<Names>(), {.batch_size = 2, .collate = [](std::vector<Labelled> examples) {
                                                  Labelled batch;
                                                  std::vector<ls::Tensor> images;
                                                  for (Labelled& example : examples) {
                                                    images.push_back(example.image);
                                                    batch.name += example.name;
                                                  }
                                                  batch.image = ls::stack(images);
                                                  return batch;
                                                }});
  std::string names;
  for (const auto& [image, name] : loader) names += name + ";";
  CHECK(names == "01;2;");
}

TEST_CASE("an aggregate that cannot be stacked needs a collate function, and the error says so") {
  DataLoader loader(std::make_shared<Names>());
  CHECK(contains(error_of([&] { loader.begin(); }), "Pass .collate"));
}

TEST_CASE("a data set of single tensors needs no collate function") {
  struct Squares : BasicDataset<ls::Tensor> {
    std::int64_t size() const override { return 3; }
    ls::Tensor get(std::int64_t index) const override { return ls::tensor(index * index); }
  };
  DataLoader loader(std::make_shared<Squares>(), {.batch_size = 3});
  for (const ls::Tensor& batch : loader) CHECK(batch.to_vector<std::int64_t>() == Rows{0, 1, 4});
}

TEST_CASE("a loader's iterator is a C++20 input iterator that outlives the loader") {
  using Iterator = DataLoader<>::Iterator;
  static_assert(std::input_iterator<Iterator> && std::sentinel_for<std::default_sentinel_t, Iterator>);
  auto iterator = DataLoader(std::make_shared<Counting>(3), {.batch_size = 2}).begin();
  CHECK(iterator->input.to_vector<std::int64_t>() == Rows{0, 1});
  ++iterator;
  CHECK((*iterator).input.to_vector<std::int64_t>() == Rows{2});
  ++iterator;
  CHECK(iterator == std::default_sentinel);
}

TEST_CASE("options that contradict each other are refused, and the error names both") {
  auto set = std::make_shared<Counting>(4);
  const auto sampler = [] { return std::make_shared<SequentialSampler>(4); };
  const auto batch_sampler = [] { return std::make_shared<MicroBatchSampler>(4, MicroBatchSamplerOptions{}); };
  const auto refused = [&](DataLoaderOptions options, const std::string& one, const std::string& other) {
    const std::string text = error_of([&] { DataLoader<> loader(set, std::move(options)); });
    CHECK_MESSAGE((contains(text, one) && contains(text, other)), text);
  };
  refused({.shuffle = true, .sampler = sampler()}, ".sampler", ".shuffle");
  refused({.batch_size = 2, .batch_sampler = batch_sampler()}, ".batch_sampler", ".batch_size");
  refused({.shuffle = true, .batch_sampler = batch_sampler()}, ".batch_sampler", ".shuffle");
  refused({.sampler = sampler(), .batch_sampler = batch_sampler()}, ".batch_sampler", ".sampler");
  refused({.batch_sampler = batch_sampler(), .drop_last = true}, ".batch_sampler", ".drop_last");
  refused({.batch_size = 0}, ".batch_size is 0", "at least 1");
  refused({.batch_size = -5}, ".batch_size is -5", "at least 1");
  refused({.num_workers = -1}, ".num_workers is -1", "0 to");
  refused({.num_workers = 1, .prefetch_factor = 0}, ".prefetch_factor is 0", "1 to");
  refused({.prefetch_factor = 3}, ".prefetch_factor is 3", ".num_workers");
  CHECK(contains(error_of([] { DataLoader<> loader(nullptr); }), "null pointer"));
  DataLoader<> loader(set);
  CHECK(contains(error_of([&] { loader.skip(-1); }), "skip(-1)"));
}

TEST_CASE("shuffling follows manual_seed unless a seed is given") {
  auto set = std::make_shared<Counting>(20);
  const auto order = [&](std::uint64_t manual, std::optional<std::int64_t> given) {
    ls::manual_seed(manual);
    DataLoader loader(set, {.batch_size = 20, .shuffle = true, .seed = given});
    return (*loader.begin()).input.to_vector<std::int64_t>();
  };
  CHECK(order(4, {}) == permutation(20, 4));
  CHECK(order(5, {}) == permutation(20, 5));
  CHECK(order(5, 4) == permutation(20, 4));
  // The seed is taken when the loader is made: numbers that are drawn later change nothing, and the next epoch differs.
  ls::manual_seed(4);
  DataLoader loader(set, {.batch_size = 20, .shuffle = true});
  ls::manual_seed(6);
  CHECK((*loader.begin()).input.to_vector<std::int64_t>() == permutation(20, 4));
  CHECK((*loader.begin()).input.to_vector<std::int64_t>() == permutation(20, 5));
}

TEST_CASE("a sampler for another data set is refused before a batch is loaded") {
  DataLoader loader(std::make_shared<Counting>(4), {.sampler = std::make_shared<SequentialSampler>(5)});
  CHECK(contains(error_of([&] { loader.begin(); }), "index 4 is outside [0, 4)"));
}

TEST_CASE("an exception of a data set is thrown at its batch, after the batches before it") {
  struct Broken : Counting {
    using Counting::Counting;
    Example get(std::int64_t index) const override {
      if (index == 5) throw ls::IoError("example 5 is broken");
      return Counting::get(index);
    }
  };
  for (const std::int64_t workers : {0, 1, 3}) {
    DataLoader loader(std::make_shared<Broken>(9), {.batch_size = 2, .num_workers = workers});
    int batches = 0;
    const std::string text = error_of<ls::IoError>([&] {
      for (const auto& batch : loader) batches += batch.input.defined();
    });
    CHECK(text == "example 5 is broken");
    CHECK(batches == 2);
  }
}
