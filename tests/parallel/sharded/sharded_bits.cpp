// ShardedDataParallel gives the bits of gradient accumulation in one process.
#include "tests/parallel/sharded/sharded.h"

using namespace sharded_test;

namespace {

const ls::optim::AdamWOptions kAdam{.lr = 0.01};
const ls::optim::SGDOptions kSgd{.lr = 0.1, .momentum = 0.9};

template <class Optimizer, class OptimizerOptions>
void check_stages(const Options& options, int ranks, const OptimizerOptions& of_optimizer) {
  CAPTURE(ranks);
  CAPTURE(options.micro_batches);
  const Result want = run_accumulation<Optimizer>(options, of_optimizer);
  for (int stage = 1; stage <= 3; ++stage) {
    CAPTURE(stage);
    with_group("shm", ranks, [&](const Group& group) {
      const Result sharded = run_sharded<Optimizer>(group, options, of_optimizer, {.stage = stage});
      CHECK(sharded.losses == want.losses);
      CHECK(sharded.norms == want.norms);
      CHECK(sharded.hash == want.hash);
    });
  }
}

}  // namespace

TEST_CASE("every stage, on 1 to 8 ranks with 1 to 4 micro-batches each, gives the bits of gradient accumulation") {
  for (const int ranks : {1, 2, 4, 8}) {
    for (const int each : {1, 2, 4}) check_stages<ls::optim::AdamW>({.micro_batches = ranks * each}, ranks, kAdam);
  }
  check_stages<ls::optim::SGD>({.micro_batches = 2}, 2, kSgd);
  check_stages<ls::optim::SGD>({.micro_batches = 3}, 3, kSgd);
  check_stages<ls::optim::SGD>({.micro_batches = 6}, 3, kSgd);
}

TEST_CASE("every elementwise optimizer gives the bits of gradient accumulation") {
  namespace optim = ls::optim;
  const Options options{.micro_batches = 2};
  check_stages<optim::AdamW>(options, 2, optim::AdamWOptions{.lr = 0.01, .amsgrad = true});
  check_stages<optim::RMSprop>(options, 2, optim::RMSpropOptions{.eps = 1e-3, .momentum = 0.9, .centered = true});
  check_stages<optim::Adagrad>(options, 2, optim::AdagradOptions{.lr_decay = 0.1, .initial_accumulator_value = 0.1});
  check_stages<optim::Lion>(options, 2, optim::LionOptions{.lr = 0.01, .weight_decay = 0.1});
}

TEST_CASE("weighted by samples, the bits are those of weighted accumulation") {
  check_stages<ls::optim::AdamW>({.micro_batches = 4, .weighting = ls::parallel::Weighting::kSamples}, 2, kAdam);
}

TEST_CASE("with the optimizer on the host, the bits and the bytes copied are those of the plan") {
  const Options options{.micro_batches = 4};
  const Result want = run_accumulation<ls::optim::AdamW>(options, kAdam);
  for (int stage = 1; stage <= 3; ++stage) {
    CAPTURE(stage);
    with_group("shm", 2, [&](const Group& group) {
      const ls::parallel::ShardedDataParallelOptions offloaded{.stage = stage, .offload_optimizer = true};
      const Result host = run_sharded<ls::optim::AdamW>(group, options, kAdam, offloaded);
      const Result there = run_sharded<ls::optim::AdamW>(group, options, kAdam, offloaded, ls::Device("cpu:1"));
      CHECK(host.hash == want.hash);
      CHECK(there.hash == want.hash);
      CHECK(there.losses == want.losses);
      CHECK(host.copied == 0);
      CHECK(there.copied > 0);
    });
  }
}

TEST_CASE("a deferred model needs no values before it is sharded, and gets those of a model that is not deferred") {
  with_group("shm", 2, [](const Group& group) {
    ls::manual_seed(5);
    Model whole;
    const std::uint64_t want = ls::nn::parameter_hash(whole);
    for (int stage = 1; stage <= 3; ++stage) {
      ls::nn::DeferredInit deferred(5);
      Model model;
      deferred.end();
      ls::parallel::ShardedDataParallel run(model, group, {.stage = stage});
      run.gathered([&] { CHECK(ls::nn::parameter_hash(model) == want); });
    }
  });
}

TEST_CASE("ranks with deferred models of different seeds get an error") {
  with_group("shm", 2, [](const Group& group) {
    ls::nn::DeferredInit deferred(static_cast<std::uint64_t>(group->rank()));
    Model model;
    deferred.end();
    CHECK(contains(error_of<ls::CommError>([&] { ls::parallel::ShardedDataParallel run(model, group, {}); }),
                   "different seeds"));
  });
}
