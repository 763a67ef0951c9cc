#include "tests/parallel/step/same_bits.h"

namespace {

const ls::optim::SGDOptions kSgd{.lr = 0.1, .momentum = 0.9};
const ls::optim::AdamWOptions kAdam{.lr = 0.01};

template <class Optimizer, class Options>
void check_modes(const Options& options, int threads) {
  ls::set_num_threads(threads);
  for (const int micro_batches : {1, 2, 4, 8}) {
    CAPTURE(micro_batches);
    const SameBitsRun want = run_accumulation<Optimizer>(micro_batches, options);
    const SameBitsRun parallel = run_data_parallel<Optimizer>(micro_batches, options);
    CHECK(parallel.hash == want.hash);
    CHECK(parallel.losses == want.losses);
  }
}

// Ranks are processes, because the random streams belong to a process.
template <class Optimizer, class Options>
void check_ranks(const Options& options, const std::vector<int>& numbers_of_ranks, int micro_batches) {
  CAPTURE(micro_batches);
  const SameBitsRun want = run_accumulation<Optimizer>(micro_batches, options);
  for (const int ranks : numbers_of_ranks) {
    CAPTURE(ranks);
    with_group("shm", ranks, [&](const Group& group) {
      const SameBitsRun distributed = run_distributed<Optimizer>(group, micro_batches, options);
      CHECK(distributed.hash == want.hash);
      CHECK(distributed.losses == want.losses);
    });
  }
}

// Recomputes a part of forward in every mode, and compares with a run in sequence that does not.
void check_recomputation(bool bf16) {
  const SameBitsRun want = run_accumulation<ls::optim::AdamW>(4, kAdam, {.bf16 = bf16});
  const Variation recomputed{.recompute = true, .bf16 = bf16};
  CHECK(run_accumulation<ls::optim::AdamW>(4, kAdam, recomputed).hash == want.hash);
  CHECK(run_data_parallel<ls::optim::AdamW>(4, kAdam, recomputed).hash == want.hash);
  for (const int ranks : {1, 2, 4}) {
    with_group("shm", ranks, [&](const Group& group) {
      CHECK(run_distributed<ls::optim::AdamW>(group, 4, kAdam, recomputed).hash == want.hash);
    });
  }
}

}  // namespace

TEST_CASE(
    "DistributedDataParallel over R ranks with S / R micro-batches each gives the bits of S micro-batches in "
    "sequence") {
  std::vector<int> ranks;
  for (const int micro_batches : {1, 2, 4, 8}) {
    ranks.push_back(micro_batches);
    check_ranks<ls::optim::SGD>(kSgd, ranks, micro_batches);
    check_ranks<ls::optim::AdamW>(kAdam, ranks, micro_batches);
  }
  check_ranks<ls::optim::SGD>(kSgd, {3}, 6);
  check_ranks<ls::optim::SGD>(kSgd, {3}, 3);
}

TEST_CASE("DataParallel on S devices gives the bits of S micro-batches in sequence, for any number of threads") {
  const int before = ls::num_threads();
  check_modes<ls::optim::SGD>(kSgd, 1);
  check_modes<ls::optim::SGD>(kSgd, 2);
  check_modes<ls::optim::AdamW>(kAdam, 2);
  ls::set_num_threads(before);
}

TEST_CASE("recomputation changes no bit, in no mode") { check_recomputation(/*bf16=*/false); }

TEST_CASE("under bf16 autocast all modes give the same bits, with and without recomputation") {
  check_recomputation(/*bf16=*/true);
  const SameBitsRun want = run_accumulation<ls::optim::SGD>(4, kSgd, {.bf16 = true});
  CHECK(want.hash != run_accumulation<ls::optim::SGD>(4, kSgd).hash);
  CHECK(run_data_parallel<ls::optim::SGD>(4, kSgd, {.bf16 = true}).hash == want.hash);
  with_group("shm", 2, [&](const Group& group) {
    CHECK(run_distributed<ls::optim::SGD>(group, 4, kSgd, {.bf16 = true}).hash == want.hash);
  });
}

TEST_CASE("different micro-batches give different bits, and so would another order of additions") {
  CHECK(run_accumulation<ls::optim::SGD>(1, kSgd).hash != run_accumulation<ls::optim::SGD>(2, kSgd).hash);
  CHECK(run_accumulation<ls::optim::SGD>(2, kSgd).hash != run_accumulation<ls::optim::SGD>(4, kSgd).hash);
  CHECK(run_accumulation<ls::optim::SGD>(4, kSgd).hash == run_accumulation<ls::optim::SGD>(4, kSgd).hash);
}

TEST_CASE("a rank's checkpoint has the random counters of all ranks' micro-batches") {
  std::vector<std::uint64_t> want;
  {
    run_accumulation<ls::optim::SGD>(4, kSgd);
    want = ls::random::state();
  }
  with_group("shm", 2, [&](const Group& group) {
    run_distributed<ls::optim::SGD>(group, 4, kSgd);
    CHECK(ls::random::state() != want);
    ls::parallel::share_random_state(*group);
    CHECK(ls::random::state() == want);
  });
}
