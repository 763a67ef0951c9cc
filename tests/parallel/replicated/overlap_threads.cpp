// How much of a step's communication overlaps with backward: the definition, and the report of a step.
#include <doctest/doctest.h>

#include <set>

#include "tests/parallel/replicated/overlap.h"

namespace par = lockstep::parallel;
using par::BucketStats, par::CommunicationOverlap;

TEST_CASE("overlap: only buckets that were done before the last gradient was ready count, in seconds and in bytes") {
  // The first bucket is done at 4, before the last gradient at 6; the second is then in flight.
  const std::vector<BucketStats> buckets = {{.bytes = 100, .ready = 0, .launched = 1, .done = 4},
                                            {.bytes = 200, .ready = 3, .launched = 3, .done = 9},
                                            {.bytes = 700, .ready = 6, .launched = 6, .done = 11}};
  const CommunicationOverlap overlap = par::communication_overlap(buckets);
  CHECK(overlap.bytes == 1000);
  CHECK(overlap.early_bytes == 100);
  CHECK(overlap.byte_share() == 0.1);
  CHECK(overlap.seconds == 10);  // 1 to 11: from 3 on two are in flight, and the time counts once
  CHECK(overlap.early_seconds == 3);
  CHECK(overlap.share() == 0.3);
}

TEST_CASE("overlap: seconds of buckets that are in flight together count once, and pauses do not count") {
  const std::vector<BucketStats> buckets = {{.bytes = 1, .ready = 0, .launched = 0, .done = 2},
                                            {.bytes = 1, .ready = 1, .launched = 1, .done = 3},
                                            {.bytes = 1, .ready = 2, .launched = 2, .done = 2.5},
                                            {.bytes = 1, .ready = 8, .launched = 8, .done = 9}};
  const CommunicationOverlap overlap = par::communication_overlap(buckets);
  CHECK(overlap.early_seconds == 3);
  CHECK(overlap.seconds == 4);
  CHECK(overlap.byte_share() == 0.75);
}

TEST_CASE("overlap: one bucket, no bucket, and buckets that all wait for the last gradient have no overlap") {
  for (const auto& buckets :
       {std::vector<BucketStats>(),
        {{.bytes = 8, .ready = 0, .launched = 1, .done = 2}},
        // The first bucket waits for the last gradient, and the others wait for the first bucket.
        {{.bytes = 8, .ready = 5, .launched = 5, .done = 6}, {.bytes = 8, .ready = 1, .launched = 5, .done = 7}}}) {
    const CommunicationOverlap overlap = par::communication_overlap(buckets);
    CHECK(overlap.share() == 0);
    CHECK(overlap.byte_share() == 0);
  }
}

TEST_CASE("overlap: local ranks report the buckets that were done before the last gradient was ready") {
  for (const int size : {2, 3}) with_group("local", size, overlap_test::check_overlap);
}

TEST_CASE("overlap: a layer's bias and weight share a bucket, which goes out before backward reaches the first layer") {
  with_group("local", 2, [](const Group& group) {
    ls::nn::Sequential model(ls::nn::Linear(784, 512), ls::nn::ReLU(), ls::nn::Linear(512, 256), ls::nn::ReLU(),
                             ls::nn::Linear(256, 10));
    par::DistributedDataParallel ddp(model, group);
    for (int step = 0; step < 2; ++step) {
      mean(ddp(ls::ones({4, 784}))).backward();
      const auto buckets = ddp.stats().buckets;
      REQUIRE(buckets.size() == 2);
      CHECK(std::set(buckets[0].parameters.begin(), buckets[0].parameters.end()) ==
            std::set<std::string>{"4.bias", "4.weight", "2.bias", "2.weight"});
      CHECK(std::set(buckets[1].parameters.begin(), buckets[1].parameters.end()) ==
            std::set<std::string>{"0.bias", "0.weight"});
      CHECK(buckets[0].launched < buckets[1].ready);
    }
  });
}

TEST_CASE(
    "overlap: with a communication hook, which may keep state for each bucket, buckets stay those of the first step") {
  with_group("local", 2, [](const Group& group) {
    overlap_test::Layers model({2, 1, 0});  // gradients become ready from the first parameter to the last
    par::DistributedDataParallel ddp(model, group, {.bucket_cap_mb = overlap_test::kOneBucketEach});
    ddp.register_comm_hook(std::make_shared<par::PowerSgdHook>(par::PowerSgdOptions{.start_iteration = 0}));
    for (int step = 0; step < 3; ++step) {
      model.zero_grad();
      mean(ddp(ls::ones({4, 128}))).backward();
      const auto buckets = ddp.stats().buckets;
      REQUIRE(buckets.size() == 3);
      CHECK(buckets[0].parameters == std::vector<std::string>{"2.weight"});
    }
  });
}

TEST_CASE("overlap: a group of one communicates nothing") {
  with_group("local", 1, [](const Group& group) {
    overlap_test::Layers model({0, 1, 2});
    overlap_test::check_none(overlap_test::stats_of_step(group, model, overlap_test::kOneBucketEach), 3);
  });
}
