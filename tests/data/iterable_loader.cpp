// IterableDataset and the DataLoader over it.
#include "support.h"

using namespace ls::data;

namespace {

// The numbers first, first + step, ... below `size`, and their negatives; in epoch e from e on.
class Numbers : public IterableDataset {
 public:
  explicit Numbers(std::int64_t size, std::int64_t first = 0, std::int64_t step = 1)
      : size_(size), first_(first), step_(step), at_(first) {}
  std::unique_ptr<IterableDataset> shard(std::int64_t index, std::int64_t count) const override {
    return std::make_unique<Numbers>(size_, first_ + index * step_, step_ * count);
  }
  std::optional<Example> next() override {
    if (at_ >= size_) return std::nullopt;
    const std::int64_t value = at_ + epoch_ * 1000;
    at_ += step_;
    if (value == 13) throw ls::IoError("no 13");
    return Example{ls::tensor(value), ls::tensor(-value)};
  }
  void set_epoch(std::int64_t epoch) override { epoch_ = epoch; }

 private:
  std::int64_t size_, first_, step_, at_, epoch_ = 0;
};

std::vector<std::int64_t> sorted_rows(const std::vector<Rows>& batches) {
  std::vector<std::int64_t> all;
  for (const Rows& rows : batches) all.insert(all.end(), rows.begin(), rows.end());
  std::ranges::sort(all);
  return all;
}

}  // namespace

TEST_CASE("a loader makes batches of an iterable data set, in its order, and each epoch again from the start") {
  DataLoader loader(std::make_shared<Numbers>(7), {.batch_size = 3});
  CHECK(epoch_of(loader) == std::vector<Rows>{{0, 1, 2}, {3, 4, 5}, {6}});
  CHECK(loader.epoch() == 1);
  CHECK(epoch_of(loader) == std::vector<Rows>{{1000, 1001, 1002}, {1003, 1004, 1005}, {1006}});
  DataLoader dropping(std::make_shared<Numbers>(7), {.batch_size = 3, .drop_last = true});
  CHECK(epoch_of(dropping) == std::vector<Rows>{{0, 1, 2}, {3, 4, 5}});
  DataLoader empty(std::make_shared<Numbers>(0), {.batch_size = 3, .num_workers = 2});
  CHECK(epoch_of(empty).empty());
}

TEST_CASE("each worker makes batches of its shard, and they take turns") {
  for (const std::int64_t prefetch : {1, 3}) {
    DataLoader loader(std::make_shared<Numbers>(9), {.batch_size = 2, .num_workers = 2, .prefetch = prefetch});
    CHECK(epoch_of(loader) == std::vector<Rows>{{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8}});
  }
  const Rows all = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  for (const std::int64_t workers : {0, 1, 2, 3, 5, 20}) {
    DataLoader loader(std::make_shared<Numbers>(12), {.batch_size = 2, .num_workers = workers});
    const std::vector<Rows> first = epoch_of(loader);
    CHECK(sorted_rows(first) == all);
    loader.set_epoch(0);
    CHECK(epoch_of(loader) == first);
    std::vector<Rows> of_ranks;  // each with these workers
    for (const std::int64_t rank : {0, 1, 2}) {
      DataLoader own(std::shared_ptr<const IterableDataset>(Numbers(12).shard(rank, 3)),
                     {.batch_size = 2, .num_workers = workers});
      for (const Rows& rows : epoch_of(own)) of_ranks.push_back(rows);
    }
    CHECK(sorted_rows(of_ranks) == all);
  }
}

TEST_CASE("a resumed epoch of an iterable data set continues where it was left") {
  for (const std::int64_t workers : {0, 2}) {
    DataLoader loader(std::make_shared<Numbers>(11), {.batch_size = 2, .num_workers = workers});
    loader.set_epoch(4);
    const std::vector<Rows> whole = epoch_of(loader);
    loader.set_epoch(4);
    loader.skip(3);
    CHECK(epoch_of(loader) == std::vector<Rows>(whole.begin() + 3, whole.end()));
    loader.set_epoch(4);
    loader.skip(100);
    CHECK(epoch_of(loader).empty());
  }
}

TEST_CASE("an exception of next takes the place of its batch, and leaving early stops the workers") {
  for (const std::int64_t workers : {0, 1}) {
    DataLoader loader(std::make_shared<Numbers>(20), {.batch_size = 10, .num_workers = workers});
    auto at = loader.begin();
    CHECK(error_of<ls::IoError>([&] { ++at; }) == "no 13");
    DataLoader left(std::make_shared<Numbers>(10), {.num_workers = workers});
    CHECK(left.begin()->input.item<std::int64_t>() == 0);
  }
}

TEST_CASE("options that an iterable data set excludes are errors") {
  const auto set = std::make_shared<Numbers>(4);
  CHECK(contains(error_of([&] { DataLoader(set, {.shuffle = true}); }), ".shuffle with an IterableDataset"));
  CHECK(contains(error_of([&] { DataLoader(set, {.sampler = std::make_shared<SequentialSampler>(4)}); }),
                 ".sampler with an IterableDataset"));
  CHECK(contains(error_of([&] { DataLoader(set, {.batch_size = 0}); }), ".batch_size is 0"));
  CHECK(contains(error_of([&] { DataLoader(set).size(); }), "number of examples is not known"));
  CHECK(contains(error_of([&] { DataLoader(std::shared_ptr<const IterableDataset>()); }), "null pointer"));
}
