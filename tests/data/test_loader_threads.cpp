// DataLoader with workers.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "support.h"

using namespace ls::data;

namespace {

// A data set whose examples take different times, so that workers finish out of order.
struct Uneven : Counting {
  using Counting::Counting;
  Example get(std::int64_t index) const override {
    std::this_thread::sleep_for(std::chrono::microseconds((index * 7919) % 13 * 50));
    return Counting::get(index);
  }
};

// Counts the threads inside get, and blocks them until it is opened.
struct Gate : Counting {
  using Counting::Counting;
  Example get(std::int64_t index) const override {
    std::unique_lock lock(mutex);
    ++entered;
    changed.notify_all();
    changed.wait(lock, [&] { return open; });
    return Counting::get(index);
  }
  void wait_entered(int count) const {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return entered >= count; });
  }
  void open_up() const {
    const std::lock_guard lock(mutex);
    open = true;
    changed.notify_all();
  }
  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  mutable int entered = 0;
  mutable bool open = false;
};

}  // namespace

TEST_CASE("the batches and their order do not depend on the number of workers") {
  auto set = std::make_shared<Uneven>(50);
  DataLoader alone(set, {.batch_size = 3, .shuffle = true, .seed = 2});
  std::vector<std::vector<Rows>> expected;
  for (int epoch = 0; epoch < 3; ++epoch) expected.push_back(epoch_of(alone));
  for (const std::int64_t workers : {1, 2, 5, 40}) {
    for (const std::int64_t prefetch : {1, 4}) {
      DataLoader loader(
          set, {.batch_size = 3, .shuffle = true, .num_workers = workers, .prefetch_factor = prefetch, .seed = 2});
      for (const auto& batches : expected) CHECK(epoch_of(loader) == batches);
    }
  }
}

TEST_CASE("workers run at the same time") {
  auto set = std::make_shared<Gate>(4);
  DataLoader loader(set, {.num_workers = 3});
  std::thread opener([&] {
    set->wait_entered(3);
    set->open_up();
  });
  CHECK(epoch_of(loader) == std::vector<Rows>{{0}, {1}, {2}, {3}});
  opener.join();
}

TEST_CASE("workers load no further ahead than prefetch_factor allows") {
  static std::atomic<int> made, steps, worst;
  made = steps = worst = 0;
  struct Counted : Counting {
    using Counting::Counting;
    Example get(std::int64_t index) const override {
      const int ahead = ++made - steps;  // steps is counted before the step, so it never lags
      for (int seen = worst; ahead > seen && !worst.compare_exchange_weak(seen, ahead);) {
      }
      return Counting::get(index);
    }
  };
  DataLoader loader(std::make_shared<Counted>(100), {.num_workers = 2, .prefetch_factor = 3});
  for (auto iterator = loader.begin(); iterator != loader.end(); ++iterator) ++steps;
  CHECK(made == 100);
  CHECK(worst <= 7);  // one batch in use, and six ahead of it
}

TEST_CASE("leaving the loop early stops the workers after the batches that they have started") {
  static std::atomic<int> made;
  made = 0;
  struct Counted : Uneven {
    using Uneven::Uneven;
    Example get(std::int64_t index) const override {
      ++made;
      return Uneven::get(index);
    }
  };
  DataLoader loader(std::make_shared<Counted>(1000000), {.num_workers = 4, .prefetch_factor = 2});
  for (int round = 0; round < 20; ++round) {
    for (const auto& batch : loader) {
      CHECK(batch.input.defined());
      break;
    }
  }
  CHECK(made <= 20 * (1 + 4 * 2 + 1));
}

TEST_CASE("an iterator that is dropped while workers are inside the data set waits only for those") {
  auto set = std::make_shared<Gate>(100);
  DataLoader loader(set, {.num_workers = 4});
  std::thread opener([&] {
    set->wait_entered(4);
    set->open_up();
  });
  { auto iterator = loader.begin(); }
  opener.join();
  CHECK(set->entered <= 4 + 8 + 1);
}

TEST_CASE("the first exception in the order of the batches is thrown, for any timing of the workers") {
  struct Broken : Uneven {
    using Uneven::Uneven;
    Example get(std::int64_t index) const override {
      Example example = Uneven::get(index);
      if (index % 10 == 7) throw ls::IoError("example " + std::to_string(index));
      return example;
    }
  };
  for (int round = 0; round < 10; ++round) {
    DataLoader loader(std::make_shared<Broken>(60), {.batch_size = 2, .num_workers = 5});
    int batches = 0;
    const std::string text = error_of<ls::IoError>([&] {
      for (const auto& batch : loader) batches += batch.input.defined();
    });
    CHECK(text == "example 7");
    CHECK(batches == 3);
  }
}

TEST_CASE("after an exception the iterator continues with the next batch, with and without workers") {
  struct Broken : Counting {
    using Counting::Counting;
    Example get(std::int64_t index) const override {
      if (index == 1) throw ls::IoError("one");
      return Counting::get(index);
    }
  };
  for (const std::int64_t workers : {0, 2}) {
    DataLoader loader(std::make_shared<Broken>(3), {.num_workers = workers});
    auto iterator = loader.begin();
    CHECK_THROWS_AS(++iterator, ls::IoError);
    ++iterator;
    CHECK(iterator->input.to_vector<std::int64_t>() == Rows{2});
  }
}

TEST_CASE("workers collate too, and pass on exceptions of collate") {
  DataLoader loader(std::make_shared<Counting>(6),
                    {.batch_size = 2, .num_workers = 2, .collate = [](std::vector<Example> rows) {
                       if (rows[0].input.item<int>() == 4) throw ls::InvalidArgument("four");
                       return Example{rows[1].input, rows[1].target};
                     }});
  Rows seen;
  CHECK(error_of([&] {
          for (const auto& [x, y] : loader) seen.push_back(x.item<std::int64_t>());
        }) == "four");
  CHECK(seen == Rows{1, 3});
}

TEST_CASE("a TensorDataset read by workers gives the same bits as without workers") {
  auto set = std::make_shared<TensorDataset>(numbers({100, 5}), numbers({100, 1}));
  DataLoader alone(set, {.batch_size = 7, .shuffle = true}),
      many(set, {.batch_size = 7, .shuffle = true, .num_workers = 3});
  auto a = alone.begin(), b = many.begin();
  for (; a != alone.end(); ++a, ++b) {
    CHECK(same_bits(a->input, b->input));
    CHECK(same_bits(a->target, b->target));
  }
  CHECK(b == many.end());
}

TEST_CASE("two loaders share one data set, one in each thread") {
  auto set = std::make_shared<Uneven>(30);
  std::vector<std::vector<Rows>> seen(2);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      DataLoader loader(set, {.batch_size = 4, .num_workers = 2});
      for (const auto& [x, y] : loader) seen[i].push_back(x.to_vector<std::int64_t>());
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(seen[0].size() == 8);
  CHECK(seen[0] == seen[1]);
}
