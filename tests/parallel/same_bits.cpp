#include "tests/parallel/same_bits.h"

namespace {

const ls::optim::SGDOptions kSgd{.lr = 0.1, .momentum = 0.9};
const ls::optim::AdamWOptions kAdam{.lr = 0.01};

template <class Optimizer, class Options>
void check_modes(const Options& options, int threads) {
  ls::set_num_threads(threads);
  for (const int shards : {1, 2, 4, 8}) {
    CAPTURE(shards);
    const SameBitsRun want = run_shards<Optimizer>(shards, options);
    const SameBitsRun parallel = run_data_parallel<Optimizer>(shards, options);
    CHECK(parallel.hash == want.hash);
    CHECK(parallel.losses == want.losses);
  }
}

// Ranks as processes: the random streams are a process's own.
template <class Optimizer, class Options>
void check_ranks(const Options& options, int ranks, int shards) {
  CAPTURE(ranks);
  CAPTURE(shards);
  with_group("shm", ranks, [&](const Group& group) {
    const SameBitsRun distributed = run_distributed<Optimizer>(group, shards, options);
    const SameBitsRun want = run_shards<Optimizer>(shards, options);
    CHECK(distributed.hash == want.hash);
    CHECK(distributed.losses == want.losses);
  });
}

}  // namespace

TEST_CASE("DistributedDataParallel over R ranks with S / R shards each gives the bits of S shards in turn") {
  for (const int shards : {1, 2, 4, 8}) {
    for (int ranks = 1; ranks <= shards; ranks *= 2) {
      check_ranks<ls::optim::SGD>(kSgd, ranks, shards);
      check_ranks<ls::optim::AdamW>(kAdam, ranks, shards);
    }
  }
  check_ranks<ls::optim::SGD>(kSgd, 3, 6);
  check_ranks<ls::optim::SGD>(kSgd, 3, 3);
}

TEST_CASE("DataParallel on S devices gives the bits of S shards in turn, whatever the number of threads") {
  const int before = ls::num_threads();
  check_modes<ls::optim::SGD>(kSgd, 1);
  check_modes<ls::optim::SGD>(kSgd, 2);
  check_modes<ls::optim::AdamW>(kAdam, 2);
  ls::set_num_threads(before);
}

TEST_CASE("runs with different shards differ, and so would a mode that added in another order") {
  CHECK(run_shards<ls::optim::SGD>(1, kSgd).hash != run_shards<ls::optim::SGD>(2, kSgd).hash);
  CHECK(run_shards<ls::optim::SGD>(2, kSgd).hash != run_shards<ls::optim::SGD>(4, kSgd).hash);
  CHECK(run_shards<ls::optim::SGD>(4, kSgd).hash == run_shards<ls::optim::SGD>(4, kSgd).hash);
}

TEST_CASE("a rank's checkpoint has the random counters of all ranks' shards") {
  std::vector<std::uint64_t> want;
  {
    run_shards<ls::optim::SGD>(4, kSgd);
    want = ls::random::state();
  }
  with_group("shm", 2, [&](const Group& group) {
    run_distributed<ls::optim::SGD>(group, 4, kSgd);
    CHECK(ls::random::state() != want);
    ls::parallel::share_random_state(*group);
    CHECK(ls::random::state() == want);
  });
}
