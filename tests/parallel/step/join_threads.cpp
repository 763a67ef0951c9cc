// join: ranks with different numbers of batches, as threads.
#include "tests/parallel/step/join.h"

using ls::parallel::DistributedDataParallel;
using ls::parallel::JoinOptions;
using ls::parallel::Weighting;

namespace {

const std::vector<std::vector<int>> kUneven = {{3},       {2, 5},       {5, 2}, {0, 3}, {3, 0},
                                               {4, 1, 3}, {0, 4, 2, 4}, {3, 3}, {0, 0}};

void check_uneven_threads(UnevenRun run) {
  for (const std::vector<int>& batches : kUneven) {
    CAPTURE(doctest::toString(batches.size()));
    CAPTURE(batches[0]);
    run.batches = batches;
    with_group("local", static_cast<int>(batches.size()), [&](const Group& group) { check_uneven(group, run); });
  }
}

void step(DistributedDataParallel& ddp, const ls::nn::Module& model, int rank, int k) {
  const UnevenBatch batch(rank, k);
  ddp.backward(batch.x, batch.y,
               [&](const ls::Tensor& x, const ls::Tensor& y) { return ls::nn::MSELoss()(model(x), y); });
}

}  // namespace

TEST_CASE(
    "join: ranks without batches join the others' steps, and the result is that of one process with the same steps") {
  for (const bool by_initial : {true, false}) {
    CAPTURE(by_initial);
    for (const bool verb : {true, false}) check_uneven_threads({.by_initial = by_initial, .verb = verb});
    check_uneven_threads({.by_initial = by_initial, .ddp = {.micro_batches_per_rank = 2}});
    check_uneven_threads({.by_initial = by_initial, .ddp = {.weighting = Weighting::kSamples}});
    check_uneven_threads({.by_initial = by_initial, .ddp = {.bucket_cap_mb = 1e-5, .check_every = 1}});
  }
}

TEST_CASE("join: with the same number of batches on all ranks the bits are those without it") {
  std::uint64_t hashes[2] = {};
  std::int64_t bytes[2] = {};
  for (const bool joins : {false, true}) {
    with_group("local", 3, [&](const Group& group) {
      Counting model;
      DistributedDataParallel ddp(model, group);
      ls::optim::SGD optimizer(model.parameters(), {.lr = 0.1, .momentum = 0.9});
      const std::int64_t before = group->traffic().bytes();
      std::int64_t in_loop = 0;
      ddp.join(
          [&] {
            const std::int64_t at_start = group->traffic().bytes();
            for (int k = 0; k < 5; ++k) {
              optimizer.zero_grad();
              step(ddp, model, group->rank(), k);
              optimizer.step();
            }
            in_loop = group->traffic().bytes() - at_start;
          },
          {.enable = joins});
      if (!joins) CHECK(in_loop == group->traffic().bytes() - before);
      if (group->rank() != 0) return;
      hashes[joins ? 1 : 0] = ls::nn::parameter_hash(model);
      bytes[joins ? 1 : 0] = in_loop;
    });
  }
  CHECK(hashes[0] == hashes[1]);
  CHECK(bytes[0] == bytes[1]);  // no extra message while all ranks have data
}

TEST_CASE("join: joined ranks skip steps in no_sync, whose gradients take part in the next synchronised step") {
  with_group("local", 2, [](const Group& group) {
    // Rank 0 runs two rounds of two batches, the second one synchronised; rank 1 runs one round.
    Counting model, alone;
    DistributedDataParallel ddp(model, group);
    ls::optim::SGD optimizer(model.parameters(), {.lr = 0.1}), reference(alone.parameters(), {.lr = 0.1});
    ddp.join([&] {
      for (int round = 0; round < 2 - group->rank(); ++round) {
        optimizer.zero_grad();
        {
          const auto guard = ddp.no_sync();
          step(ddp, model, group->rank(), 2 * round);
        }
        step(ddp, model, group->rank(), 2 * round + 1);
        optimizer.step();
      }
    });
    for (int round = 0; round < 2; ++round) {
      reference.zero_grad();
      for (int r = 0; r < 2 - round; ++r) {
        for (int k : {2 * round, 2 * round + 1}) {
          const UnevenBatch batch(r, k);
          (ls::nn::MSELoss()(alone(batch.x), batch.y) / 2).backward();
        }
      }
      reference.step();
    }
    check_close(*model.fc1.weight, *alone.fc1.weight, "fc1.weight", {1e-4, 1e-5});
    CHECK(ddp.stats().steps == 2);
  });
}

TEST_CASE("join: with shadow_step the optimizers' states stay equal, and training continues in step") {
  with_group("local", 3, [](const Group& group) {
    Counting model;
    DistributedDataParallel ddp(model, group, {.check_every = 1});
    ls::optim::AdamW optimizer(model.parameters(), {.lr = 0.01});
    const auto train = [&](int batches) {
      for (int k = 0; k < batches; ++k) {
        optimizer.zero_grad();
        step(ddp, model, group->rank(), k);
        optimizer.step();
      }
    };
    for (int epoch = 0; epoch < 2; ++epoch) {
      ddp.join([&] { train(2 * group->rank()); }, {.shadow_step = [&] { optimizer.step(); }});
      train(2);  // check_every compares the replicas
    }
    CHECK(ddp.stats().steps == 12);
  });
}

TEST_CASE(
    "join: throw_on_early_termination names the first exhausted rank on all ranks, and the group remains usable") {
  with_group("local", 3, [](const Group& group) {
    Counting model;
    DistributedDataParallel ddp(model, group);
    const std::uint64_t before = ls::nn::parameter_hash(model);
    const std::string error = error_of<ls::CommError>([&] {
      ddp.join(
          [&] {
            for (int k = 0; k < (group->rank() == 1 ? 3 : 5); ++k) {
              model.zero_grad();
              step(ddp, model, group->rank(), k);
            }
          },
          {.throw_on_early_termination = true});
    });
    CHECK_MESSAGE(contains(error, "rank 1 has no more data after 3 steps, rank 2 is at step 4"), error);
    const std::uint64_t after = ls::nn::parameter_hash(model);
    CHECK((group->rank() == 1 || before != after));  // the buffer has counted
    ddp.join(
        [&] {
          model.zero_grad();
          step(ddp, model, group->rank(), 0);
        },
        {.throw_on_early_termination = true});  // the same number of steps: no error
    CHECK(ddp.stats().steps == 5);
  });
}

TEST_CASE("join: a stop request reaches all ranks, and ends all loops after the same step") {
  with_group("local", 3, [](const Group& group) {
    Counting model;
    DistributedDataParallel ddp(model, group);
    int steps = 0;
    ddp.join([&] {
      while (group->rank() != 2 && !ddp.stop_requested()) {
        if (group->rank() == 1 && steps == 2) ddp.request_stop();
        model.zero_grad();
        step(ddp, model, group->rank(), steps++);
      }
    });
    CHECK(steps == (group->rank() == 2 ? 0 : 3));
    CHECK(ddp.stop_requested());
  });
}

TEST_CASE("join: works with parameters in f16 and bf16") {
  struct Weights : ls::nn::Module {
    explicit Weights(ls::DType dtype) : w(add_parameter("w", ls::full({3}, 8, {.dtype = dtype}))) {}
    ls::Tensor forward(const ls::Tensor& x) const override { return ls::sum(x * w->to(ls::kFloat32)); }
    ls::nn::Parameter& w;
  };
  for (const ls::DType dtype : {ls::kFloat16, ls::kBFloat16}) {
    with_group("local", 2, [&](const Group& group) {
      Weights model(dtype);
      DistributedDataParallel ddp(model, group);
      ddp.join(
          [&] {
            for (int k = 0; k < 1 + group->rank(); ++k) {
              model.zero_grad();
              ddp(ls::full({3}, 2.0 + group->rank())).backward();
              const ls::NoGradGuard no_grad;
              model.w->copy_((model.w->to(ls::kFloat32) - model.w->grad().to(ls::kFloat32)).to(dtype));
            }
          },
          {.divide_by_initial_world_size = false});
      CHECK(same_bits(*model.w, ls::full({3}, 8 - 2.5 - 3, {.dtype = dtype})));
    });
  }
}

TEST_CASE("join: misuse is an error that says so") {
  with_group("local", 2, [](const Group& group) {
    Counting model, other;
    {
      DistributedDataParallel ddp(model, group, {.micro_batches_per_rank = 2});
      const auto nothing = [] {};
      CHECK(contains(error_of([&] { ddp.join([&] { ddp.join(nothing); }); }), "join inside join"));
      {
        const auto guard = ddp.no_sync();
        CHECK(contains(error_of([&] { ddp.join(nothing); }), "no_sync"));
      }
      const std::string plain = error_of([&] { ddp.join([&] { ls::sum(ddp(ls::ones({2, 3}))).backward(); }); });
      CHECK_MESSAGE(contains(plain, "backward(x, y, loss_fn)"), plain);
      CHECK(contains(error_of([&] {
                       ddp.join([&] {
                         model.fc1.weight->requires_grad_(false);
                         step(ddp, model, group->rank(), 0);
                       });
                     }),
                     "have to stay the same"));
      model.fc1.weight->requires_grad_(true);
      const std::string differ =
          error_of<ls::CommError>([&] { ddp.join(nothing, {.divide_by_initial_world_size = group->rank() == 0}); });
      CHECK_MESSAGE(contains(differ, "rank 0 has divide_by_initial_world_size true"), differ);
      ddp.join([&] { step(ddp, model, group->rank(), 0); });  // no state of the failed join remains
    }
    DistributedDataParallel first(model, group), second(other, group);
    CHECK(contains(error_of([&] { first.join([] {}); }), "another model"));
  });
}

TEST_CASE("join: another collective of the body, while a rank has joined, is an error on both") {
  with_group("local", 2, [](const Group& group) {
    Counting model;
    DistributedDataParallel ddp(model, group);
    const std::string error = error_of<ls::CommError>([&] {
      ddp.join([&] {
        for (int k = 0; k < 2 - group->rank(); ++k) {
          model.zero_grad();
          step(ddp, model, group->rank(), k);
          group->all_reduce(ls::ones({3}))->wait();  // a metric
        }
      });
    });
    CHECK_MESSAGE(contains(error, "disagree"), error);
  });
}

TEST_CASE("join: an exception in a rank's body is an error on the joined ranks") {
  std::string seen[2];
  CHECK_THROWS_WITH_AS(with_group("local", 2,
                                  [&](const Group& group) {
                                    Counting model;
                                    DistributedDataParallel ddp(model, group);
                                    try {
                                      ddp.join([&] {
                                        if (group->rank() == 1) throw ls::IoError("the file has ended");
                                      });
                                    } catch (const ls::Error& error) {
                                      seen[group->rank()] = error.what();
                                      throw;
                                    }
                                  }),
                       doctest::Contains("rank"), ls::Error);
  CHECK(seen[1] == "the file has ended");
  CHECK_MESSAGE(contains(seen[0], "bucket 0 of 1 of step 1"), seen[0]);
}
