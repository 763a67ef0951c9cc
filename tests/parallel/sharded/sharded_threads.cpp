// ShardedDataParallel on threads: traffic, errors, evaluation, no_sync.
#include <atomic>
#include <chrono>
#include <future>

#include "tests/parallel/sharded/sharded_net.h"

namespace par = ls::parallel;
using namespace sharded_net;

namespace {

template <class Run>
ls::Tensor backward(Run& run, Net& net, std::int64_t first, std::int64_t count) {
  const auto [x, y] = rows(first, count);
  return run.backward(x, y, [&](const ls::Tensor& x, const ls::Tensor& y) { return ls::nn::MSELoss()(net(x), y); });
}

std::int64_t sent(const Group& group) {
  std::int64_t bytes = 0;
  for (const par::LinkTraffic& link : group->traffic().step_links())
    bytes += link.from == group->rank() ? link.bytes : 0;
  return bytes;
}

}  // namespace

TEST_CASE("a step sends the bytes of the plan") {
  for (const int ranks : {1, 2, 3, 4}) {
    for (int stage = 1; stage <= 3; ++stage) {
      for (const int each : {1, 2, 4}) {
        for (const bool reshard : {true, false}) {
          with_threads("local", ranks, [&](const Group& group) {
            Net net;
            set_values(net);
            par::ShardedDataParallel run(
                net, group, {.stage = stage, .micro_batches_per_rank = each, .reshard_after_forward = reshard});
            ls::optim::SGD optimizer(run.parameters(), {.lr = 0.1});
            for (int step = 0; step < 3; ++step) {
              backward(run, net, group->rank() * 4, 4);
              optimizer.step();
              const par::ShardedPlan plan = run.plan();
              CHECK(plan.bytes_per_step == plan.gather_bytes + plan.reduce_bytes + plan.summary_bytes);
              CHECK(sent(group) == plan.bytes_per_step);
              CHECK((ranks == 1) == (plan.bytes_per_step == 0));
            }
          });
        }
      }
    }
  }
}

TEST_CASE("ranks with fewer samples than micro-batches, or none, take part in a step") {
  for (int stage = 1; stage <= 3; ++stage) {
    with_threads("local", 3, [&](const Group& group) {
      Net net, alone;
      set_values(net);
      set_values(alone);
      par::ShardedDataParallel run(net, group, {.stage = stage, .micro_batches_per_rank = 2});
      par::GradientAccumulation reference(alone, {.micro_batches = 6});
      const ls::Tensor want = backward(reference, alone, 0, 3);
      const ls::Tensor loss = backward(run, net, 2 * std::min(group->rank(), 1), 2 - group->rank());
      CHECK(same_bits(loss, want));
      CHECK(run.clip_grad_norm_(0.01) == reference.clip_grad_norm_(0.01));
      CHECK(sent(group) > 0);
    });
  }
}

TEST_CASE("outside backward and gathered the parameters cannot be read, in any stage") {
  for (int stage = 1; stage <= 3; ++stage) {
    with_threads("local", 2, [&](const Group& group) {
      Net net;
      set_values(net);
      const std::uint64_t before = ls::nn::parameter_hash(net);
      par::ShardedDataParallel run(net, group, {.stage = stage});
      const auto names = [&](const std::string& error, const char* unit) {
        CHECK_MESSAGE(contains(error, unit), error);
        CHECK_MESSAGE(contains(error, "run.gathered"), error);
        CHECK_MESSAGE(contains(error, "parallel::save_checkpoint"), error);
      };
      names(error_of<ls::InvalidArgument>([&] { (void)net.blocks[2](ls::ones({1, 5})); }), "unit blocks.2");
      names(error_of<ls::InvalidArgument>([&] { (void)ls::nn::parameter_hash(net); }), "unit blocks.0");
      names(error_of<ls::InvalidArgument>([&] { (void)net.head.weight->to_vector<float>(); }), "the root unit");
      run.gathered([&] {
        run.gathered([&] { CHECK(ls::nn::parameter_hash(net) == before); });
        CHECK(ls::nn::parameter_hash(net) == before);
      });
      CHECK_THROWS_AS(run.gathered([] { throw std::runtime_error("mine"); }), std::runtime_error);
      run.gathered([&] { CHECK(ls::nn::parameter_hash(net) == before); });
      CHECK(contains(error_of<ls::InvalidArgument>([&] {
                       run.gathered([&] {
                         const ls::NoGradGuard no_grad;
                         net.blocks[1].parameters()[0]->zero_();
                       });
                     }),
                     "parameters of unit blocks.1 were changed inside gathered, and the change is undone"));
      run.gathered([&] { CHECK(ls::nn::parameter_hash(net) == before); });
    });
  }
}

TEST_CASE("what would use a part of the model only is refused") {
  with_threads("local", 2, [&](const Group& group) {
    Net net;
    ls::optim::SGD early(net.parameters(), {.lr = 0.1});
    par::ShardedDataParallel run(net, group, {});
    backward(run, net, group->rank(), 1);
    CHECK(contains(error_of([&] { ls::nn::clip_grad_norm_(run.parameters(), 1); }), "run.clip_grad_norm_"));
    CHECK(contains(error_of([&] { ls::nn::clip_grad_norm_(net.parameters(), 1); }), "run.clip_grad_norm_"));
    CHECK(contains(error_of([&] { ls::optim::SGD late(net.parameters(), {.lr = 0.1}); }), "run.parameters()"));
    CHECK(contains(error_of([&] { ls::optim::LBFGS whole(run.parameters()); }), "LBFGS: a parameter is distributed"));
    CHECK(contains(error_of([&] { early.step(); }), "run.parameters()"));
    CHECK(contains(error_of([&] { early.zero_grad(); }), "run.parameters()"));
    CHECK(contains(error_of([&] { ls::save_checkpoint("part.safetensors", {.model = &net}); }),
                   "parallel::save_checkpoint"));
    ls::optim::SGD pieces(run.parameters(), {.lr = 0.1});
    CHECK(contains(error_of([&] { pieces.state_dict(); }), "state_dict: the optimizer has this rank's pieces"));
    CHECK(contains(error_of([&] { pieces.load_state_dict({}); }), "load_state_dict: the optimizer has this rank's"));
    CHECK(contains(error_of([&] { ls::save_checkpoint("part.safetensors", {.optimizer = &pieces}); }),
                   "use parallel::save_checkpoint and load_checkpoint"));
    CHECK(contains(error_of([&] { ls::load_checkpoint("part.safetensors", {.optimizer = &pieces}); }),
                   "load_checkpoint: the optimizer has this rank's pieces"));
    CHECK(contains(error_of([&] { par::ShardedDataParallel again(net, group, {}); }), "sharded already"));
  });
}

TEST_CASE("a time-out of gathered, or of a forward, on one rank alone names the mode and the call") {
  for (const bool gathers : {true, false}) {
    std::promise<void> has_failed;
    with_threads("local", 2,
                 [&](const Group& group) {
                   Net net;
                   par::ShardedDataParallel run(net, group, {});
                   if (group->rank() == 1)
                     return static_cast<void>(has_failed.get_future().wait_for(std::chrono::seconds(20)));
                   const std::string text = error_of<ls::CommError>([&] {
                     if (gathers) return run.gathered([] {});
                     run(rows(0, 1).first);
                   });
                   has_failed.set_value();
                   CHECK_MESSAGE(contains(text, gathers ? "FSDP gathered, all ranks" : "before FSDP's all_gather"),
                                 text);
                 },
                 {.timeout = std::chrono::seconds(1)});
  }
}

TEST_CASE("options out of range are refused") {
  with_threads("local", 1, [&](const Group& group) {
    Net net;
    const auto error = [&](const par::ShardedDataParallelOptions& options) {
      return error_of<ls::InvalidArgument>([&] { par::ShardedDataParallel run(net, group, options); });
    };
    CHECK(contains(error({.stage = 4}), "stage is 4, expected 1"));
    CHECK(contains(error({.units = {"block.*"}}), "no module matches \"block.*\""));
    CHECK(contains(error({.micro_batches_per_rank = 0}), "0 micro-batches per rank"));
    for (const ls::nn::Parameter& parameter : net.parameters()) parameter->requires_grad_(false);
    CHECK(contains(error({}), "no parameter that requires grad"));
  });
}

TEST_CASE("ranks that differ in stage, units or model get an error that names both sides") {
  const auto error = [](const std::function<par::ShardedDataParallelOptions(int rank)>& options) {
    std::atomic<int> named{0};
    with_threads("local", 2, [&](const Group& group) {
      Net net;
      const std::string text =
          error_of<ls::CommError>([&] { par::ShardedDataParallel run(net, group, options(group->rank())); });
      named += contains(text, "rank 0 has") && contains(text, "rank 1 has") ? 1 : 0;
    });
    return named.load();
  };
  CHECK(error([](int rank) { return par::ShardedDataParallelOptions{.stage = 1 + rank}; }) == 2);
  CHECK(error([](int rank) {
          return par::ShardedDataParallelOptions{.units = {rank == 0 ? "blocks.*" : "blocks.1"}};
        }) == 2);
}

TEST_CASE("an exception in a unit's forward on one rank is an error on all ranks") {
  std::atomic<int> failed{0};
  with_threads("local", 2, [&](const Group& group) {
    Net net;
    set_values(net);
    try {
      par::ShardedDataParallel run(net, group, {});
      if (group->rank() == 1) {
        net.blocks[1].register_forward_pre_hook(
            [](const auto&, const auto&) -> std::vector<ls::Tensor> { throw std::runtime_error("of rank 1"); });
      }
      backward(run, net, group->rank(), 1);
    } catch (const ls::CommError& error) {
      CHECK(group->rank() == 0);
      CHECK_MESSAGE(contains(error.what(), "rank 1"), error.what());
      ++failed;
    } catch (const std::runtime_error& error) {
      CHECK(std::string(error.what()) == "of rank 1");
      ++failed;
    }
  });
  CHECK(failed == 2);
}

TEST_CASE("an operation on parameters of all units gathers them all") {
  for (int stage = 1; stage <= 3; ++stage) {
    with_threads("local", 2, [&](const Group& group) {
      const auto loss = [](const Net& net, const ls::Tensor& x, const ls::Tensor& y) {
        std::vector<ls::Tensor> weights;
        for (ls::nn::Module& block : net.blocks) weights.push_back(block.parameters()[0]);
        return ls::nn::MSELoss()(net(x), y) + ls::sum(ls::pow(ls::stack(weights), 2));
      };
      Net net, alone;
      set_values(net);
      set_values(alone);
      par::ShardedDataParallel run(net, group, {.stage = stage});
      par::GradientAccumulation reference(alone, {.micro_batches = 2});
      const auto [x, y] = rows(group->rank(), 1);
      run.backward(x, y, [&](const ls::Tensor& x, const ls::Tensor& y) { return loss(net, x, y); });
      const auto [all_x, all_y] = rows(0, 2);
      reference.backward(all_x, all_y, [&](const ls::Tensor& x, const ls::Tensor& y) { return loss(alone, x, y); });
      CHECK(run.clip_grad_norm_(0.01) == reference.clip_grad_norm_(0.01));
    });
  }
}

TEST_CASE("no_sync accumulates on the rank, and the next step reduces the sum") {
  for (int stage = 1; stage <= 3; ++stage) {
    with_threads("local", 2, [&](const Group& group) {
      Net net, replica;
      set_values(net);
      set_values(replica);
      par::ShardedDataParallel run(net, group, {.stage = stage});
      par::DistributedDataParallel ddp(replica, group);
      const auto both = [&](auto& mode, Net& of) {
        {
          const auto guard = mode.no_sync();
          backward(mode, of, group->rank() * 2, 2);
        }
        backward(mode, of, 4 + group->rank() * 2, 2);
        return mode.clip_grad_norm_(0.01);
      };
      CHECK(both(run, net) == both(ddp, replica));
    });
  }
}

TEST_CASE("a stop that one rank requests is seen by all after the same step") {
  with_threads("local", 2, [&](const Group& group) {
    Net net;
    par::ShardedDataParallel run(net, group, {});
    backward(run, net, group->rank(), 1);
    CHECK_FALSE(run.stop_requested());
    if (group->rank() == 1) run.request_stop();
    backward(run, net, group->rank(), 1);
    CHECK(run.stop_requested());
  });
}

TEST_CASE("gradients of an earlier backward survive no_sync, and a failed step leaves none") {
  for (int stage = 1; stage <= 3; ++stage) {
    for (const int each : {1, 2}) {
      with_threads("local", 2, [&](const Group& group) {
        Net net;
        set_values(net);
        par::ShardedDataParallel run(net, group, {.stage = stage, .micro_batches_per_rank = each});
        ls::optim::SGD optimizer(run.parameters(), {.lr = 0.1});
        optimizer.zero_grad();
        backward(run, net, group->rank() * 2, 2);
        const double want = run.clip_grad_norm_(1e9);

        optimizer.zero_grad();
        int calls = 0;
        const auto [x, y] = rows(group->rank() * 2, 2);
        CHECK_THROWS_AS(run.backward(x, y,
                                     [&](const ls::Tensor& x, const ls::Tensor& y) {
                                       if (++calls == each) throw std::runtime_error("mine");
                                       return ls::nn::MSELoss()(net(x), y);
                                     }),
                        std::runtime_error);
        optimizer.zero_grad();
        backward(run, net, group->rank() * 2, 2);
        CHECK(run.clip_grad_norm_(1e9) == want);
        {
          const auto guard = run.no_sync();
          backward(run, net, 8 + group->rank() * 2, 2);
        }
        CHECK(run.clip_grad_norm_(1e9) == want);
      });
    }
  }
}

TEST_CASE("changes inside gathered are undone also after an exception, and those of frozen parameters") {
  for (int stage = 1; stage <= 3; ++stage) {
    with_threads("local", 2, [&](const Group& group) {
      Net net;
      set_values(net);
      net.blocks[2].parameters()[1]->requires_grad_(false);
      const std::uint64_t before = ls::nn::parameter_hash(net);
      par::ShardedDataParallel run(net, group, {.stage = stage});
      const auto change = [&] {
        const ls::NoGradGuard no_grad;
        for (const ls::nn::Parameter& parameter : net.parameters()) parameter->zero_();
      };
      CHECK_THROWS_AS(run.gathered([&] {
        change();
        throw std::runtime_error("mine");
      }),
                      std::runtime_error);
      run.gathered([&] { CHECK(ls::nn::parameter_hash(net) == before); });
      CHECK_FALSE(error_of<ls::InvalidArgument>([&] { run.gathered(change); }).empty());
      run.gathered([&] { CHECK(ls::nn::parameter_hash(net) == before); });
    });
  }
}

TEST_CASE("a backward that would not be reduced is refused") {
  with_threads("local", 2, [&](const Group& group) {
    Net net;
    set_values(net);
    par::ShardedDataParallel run(net, group, {});
    const std::pair<ls::Tensor, ls::Tensor> data = rows(group->rank(), 1);
    CHECK(contains(error_of<ls::InvalidArgument>([&] { run.gathered([&] { ls::sum(net(data.first)).backward(); }); }),
                   "call run.backward(x, y, loss_fn)"));
    for (const ls::nn::Parameter& parameter : net.parameters()) CHECK_FALSE(parameter.master().grad().defined());
    run.backward(data.first, data.second, [&](const ls::Tensor& x, const ls::Tensor& y) {
      CHECK(contains(error_of<ls::InvalidArgument>([&] { run.gathered([] {}); }), "gathered inside a step"));
      return ls::nn::MSELoss()(net(x), y);
    });
  });
}
