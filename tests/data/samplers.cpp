#include <cstdio>
#include <numeric>

#include "support.h"

using namespace ls::data;

namespace {

Rows all_ranks(std::int64_t n, std::int64_t replicas, const DistributedSamplerOptions& options) {
  Rows rows;
  for (std::int64_t rank = 0; rank < replicas; ++rank) {
    const Rows mine = DistributedSampler(n, replicas, rank, options).indices(0);
    rows.insert(rows.end(), mine.begin(), mine.end());
  }
  return rows;
}

Rows first(const Rows& rows, std::int64_t count) { return {rows.begin(), rows.begin() + count}; }

}  // namespace

TEST_CASE("a permutation is torch.randperm of the same size and seed, index for index") {
  int compared = 0;
  for (const auto& entry : golden("samplers")) {
    const auto& key = entry.first;
    const ls::Tensor& expected = entry.second;
    long long n = 0, seed = 0;
    if (std::sscanf(key.c_str(), "randperm/n=%lld,seed=%lld", &n, &seed) != 2) continue;
    INFO(key);
    CHECK(permutation(n, seed) == expected.to_vector<std::int64_t>());
    ++compared;
  }
  CHECK(compared >= 10);
}

TEST_CASE("DistributedSampler gives every rank the indices of PyTorch's") {
  int compared = 0;
  for (const auto& entry : golden("samplers")) {
    const auto& key = entry.first;
    const ls::Tensor& expected = entry.second;
    long long n = 0, replicas = 0, seed = 0, epoch = 0;
    int shuffle = 0, drop_last = 0;
    if (std::sscanf(key.c_str(), "distributed/n=%lld,replicas=%lld,shuffle=%d,drop_last=%d,seed=%lld,epoch=%lld", &n,
                    &replicas, &shuffle, &drop_last, &seed, &epoch) != 6) {
      continue;
    }
    INFO(key);
    for (std::int64_t rank = 0; rank < replicas; ++rank) {
      DistributedSampler sampler(n, replicas, rank,
                                 {.shuffle = shuffle != 0, .seed = seed, .drop_last = drop_last != 0});
      sampler.set_epoch(epoch);
      const Rows mine = sampler.next_epoch();
      CHECK(mine == expected[rank].to_vector<std::int64_t>());
      CHECK(static_cast<std::int64_t>(mine.size()) == sampler.size());
    }
    ++compared;
  }
  CHECK(compared >= 50);
}

TEST_CASE("an exact DistributedSampler gives every row to one rank, and ranks differ by one row at most") {
  for (const std::int64_t n : {0, 1, 3, 8, 10, 37}) {
    for (const std::int64_t replicas : {1, 2, 3, 8}) {
      Rows rows = all_ranks(n, replicas, {.exact = true});
      std::sort(rows.begin(), rows.end());
      Rows expected(static_cast<std::size_t>(n));
      std::iota(expected.begin(), expected.end(), 0);
      CHECK(rows == expected);
      for (std::int64_t rank = 0; rank < replicas; ++rank) {
        const std::int64_t size = DistributedSampler(n, replicas, rank, {.exact = true}).size();
        CHECK((size == n / replicas || size == n / replicas + 1));
      }
    }
  }
}

TEST_CASE("an exact DistributedSampler gives its rows in the order of the padded one") {
  const Rows padded = DistributedSampler(10, 4, 1, {.seed = 3}).indices(2);
  const Rows exact = DistributedSampler(10, 4, 1, {.seed = 3, .exact = true}).indices(2);
  CHECK(exact == first(padded, static_cast<std::int64_t>(exact.size())));
}

TEST_CASE("the epoch advances automatically, and set_epoch sets the next one") {
  RandomSampler sampler(20, {.seed = 5});
  const Rows zero = sampler.next_epoch(), one = sampler.next_epoch();
  CHECK(zero == permutation(20, 5));
  CHECK(one == permutation(20, 6));
  CHECK(sampler.epoch() == 2);
  sampler.set_epoch(1);
  CHECK(sampler.next_epoch() == one);
  CHECK(sampler.epoch() == 2);
}

TEST_CASE("SequentialSampler gives 0 to n-1 in every epoch") {
  SequentialSampler sampler(4);
  CHECK(sampler.next_epoch() == Rows{0, 1, 2, 3});
  CHECK(sampler.next_epoch() == Rows{0, 1, 2, 3});
}

TEST_CASE(
    "each micro-batch of a batch has the rows that DistributedSampler gives its number, on whichever rank it runs") {
  for (const bool drop_last : {false, true}) {
    for (const std::int64_t n : {0, 3, 100, 103}) {
      const std::int64_t micro_batches = 4, batch_size = 6;
      for (const std::int64_t held : {1, 2, 4}) {
        for (std::int64_t begin = 0; begin < micro_batches; begin += held) {
          const MicroBatchSampler sampler(n, {.micro_batches = micro_batches,
                                              .first = begin,
                                              .count = held,
                                              .batch_size = batch_size,
                                              .shuffle = true,
                                              .seed = 9,
                                              .drop_last = drop_last});
          std::vector<Rows> dealt(static_cast<std::size_t>(held));
          const BatchPlan plan = sampler.batches(3);
          CHECK(plan.size() == sampler.size());
          for (std::int64_t b = 0; b < plan.size(); ++b) {
            const auto each = plan[b].size() / static_cast<std::size_t>(held);
            CHECK(plan[b].size() == each * static_cast<std::size_t>(held));
            if (drop_last || b + 1 < plan.size()) CHECK(each == batch_size);
            for (std::size_t s = 0; s < dealt.size(); ++s) {
              const auto part = plan[b].subspan(s * each, each);
              dealt[s].insert(dealt[s].end(), part.begin(), part.end());
            }
          }
          for (std::int64_t s = 0; s < held; ++s) {
            const Rows expected =
                DistributedSampler(n, micro_batches, begin + s, {.seed = 9, .drop_last = drop_last}).indices(3);
            const Rows& mine = dealt[static_cast<std::size_t>(s)];
            CHECK(mine == first(expected, static_cast<std::int64_t>(mine.size())));
            CHECK(expected.size() - mine.size() < (drop_last ? batch_size : 1));
          }
        }
      }
    }
  }
}

TEST_CASE("a MicroBatchSampler without a count has all micro-batches from the first one on") {
  const MicroBatchSampler all(8, {.micro_batches = 4, .first = 1, .batch_size = 2, .shuffle = false});
  const BatchPlan plan = all.batches(0);
  REQUIRE(plan.size() == 1);
  CHECK(Rows(plan[0].begin(), plan[0].end()) == Rows{1, 5, 2, 6, 3, 7});
}

TEST_CASE("a sampler names the argument that does not fit") {
  CHECK(contains(error_of([] { DistributedSampler(10, 2, 2); }), "rank 2 is not one of 2 replicas"));
  CHECK(contains(error_of([] { DistributedSampler(10, 2, -1); }), "rank -1 is not one of 2 replicas"));
  CHECK(contains(error_of([] { DistributedSampler(10, 0, 0); }), "0 replicas"));
  CHECK(contains(error_of([] { DistributedSampler(-1, 1, 0); }), "number of examples is -1"));
  CHECK(contains(error_of([] { DistributedSampler(10, 2, 0, {.drop_last = true, .exact = true}); }), ".exact"));
  CHECK(contains(error_of([] { RandomSampler(-3); }), "RandomSampler: the number of examples is -3"));
  CHECK(contains(error_of([] { SequentialSampler(3).set_epoch(-1); }), "epoch is -1"));
  CHECK(contains(error_of([] { MicroBatchSampler(10, {.micro_batches = 2, .first = 1, .count = 2}); }), ".count 2"));
  CHECK(contains(error_of([] { MicroBatchSampler(10, {.micro_batches = 2, .first = 2}); }), ".first 2"));
  CHECK(contains(error_of([] { MicroBatchSampler(10, {.batch_size = 0}); }), ".batch_size is 0"));
}

TEST_CASE("WeightedRandomSampler draws PyTorch's indices with replacement") {
  const ls::StateDict dict = golden("breadth");
  const std::vector<double> weights = dict.at("weighted/weights").to_vector<double>();
  for (const std::int64_t seed : {0, 7}) {
    const Rows expected = dict.at("weighted/" + std::to_string(seed)).to_vector<std::int64_t>();
    CHECK(WeightedRandomSampler(weights, 40, {.seed = seed}).indices(0) == expected);
  }
  WeightedRandomSampler sampler(weights, 40, {.seed = 6});
  const Rows first_epoch = sampler.next_epoch();
  CHECK(sampler.next_epoch() == dict.at("weighted/7").to_vector<std::int64_t>());  // seed + epoch
  CHECK(first_epoch.size() == 40);
}

TEST_CASE("WeightedRandomSampler without replacement draws each index once, heavy ones first") {
  std::vector<std::int64_t> first_draws(4);
  for (std::int64_t seed = 0; seed < 2000; ++seed) {
    Rows rows = WeightedRandomSampler({1, 0, 6, 3}, 3, {.replacement = false, .seed = seed}).indices(0);
    ++first_draws[static_cast<std::size_t>(rows[0])];
    std::ranges::sort(rows);
    REQUIRE(rows == Rows{0, 2, 3});
  }
  CHECK((first_draws[2] > 1100 && first_draws[2] < 1300));  // 1200 expected, 22 the standard deviation
  CHECK((first_draws[0] > 130 && first_draws[0] < 270));
}

TEST_CASE("WeightedRandomSampler refuses weights that give no distribution") {
  CHECK(contains(error_of([] { WeightedRandomSampler({1, -1}, 2); }), "weight 1 is -1"));
  CHECK(contains(error_of([] { WeightedRandomSampler({0, 0}, 2); }), "no positive sum"));
  CHECK(contains(error_of([] { WeightedRandomSampler({}, 0); }), "no positive sum"));
  CHECK(contains(error_of([] {
                   WeightedRandomSampler({1, 0}, 2, {.replacement = false});
                 }),
                 "2 samples without replacement from 1 positive weights"));
}
