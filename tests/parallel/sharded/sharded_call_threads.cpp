// ShardedDataParallel with operator() and loss.backward(), compared with DistributedDataParallel.
#include "tests/parallel/sharded/sharded_net.h"

namespace par = ls::parallel;
using namespace sharded_net;

namespace {

template <class Run>
ls::Tensor loss_of(Run& run, std::int64_t first, std::int64_t count) {
  const auto [x, y] = rows(first, count);
  return ls::nn::MSELoss()(run(x), y);
}

// A step that is added to the gradients of the step before. DistributedDataParallel adds them before the reduction if
// the user calls backward, which rounds otherwise, so that its own form of backward is the reference.
void add_step(par::ShardedDataParallel& run, std::int64_t first) { loss_of(run, first, 2).backward(); }
void add_step(par::DistributedDataParallel& ddp, std::int64_t first) {
  const auto [x, y] = rows(first, 2);
  ddp.backward(x, y, [&](const ls::Tensor& x, const ls::Tensor& y) { return ls::nn::MSELoss()(ddp.module()(x), y); });
}

// Steps in all forms that users write: gradients set to zero before forward, after forward and not at all; steps in
// no_sync; two results in one backward; evaluation.
template <class Run>
void train(Run& run, ls::optim::Optimizer& optimizer, std::int64_t first) {
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    loss_of(run, first, 3).backward();
    optimizer.step();
    const ls::Tensor loss = loss_of(run, first + 1, 3);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    add_step(run, first);
    run.clip_grad_norm_(0.5);
    optimizer.step();
    optimizer.zero_grad();
    (loss_of(run, first, 2) + loss_of(run, first + 2, 2)).backward();
    optimizer.step();
    optimizer.zero_grad();
    {
      const auto guard = run.no_sync();
      loss_of(run, first, 1).backward();
      loss_of(run, first + 1, 1).backward();
    }
    loss_of(run, first + 2, 2).backward();
    optimizer.step();
    const ls::NoGradGuard no_grad;
    CHECK_FALSE(run(rows(first, 4).first).requires_grad());
  }
}

std::vector<ls::Tensor> values_of(const ls::nn::Module& module) {
  std::vector<ls::Tensor> values;
  for (const ls::nn::Parameter& parameter : module.parameters()) values.push_back(parameter->detach().clone());
  return values;
}

// A step in backward's own form, to see that nothing is left of what came before.
void check_next_step(par::ShardedDataParallel& run, Net& net) {
  for (const ls::nn::Parameter& piece : run.parameters()) piece->set_grad(ls::Tensor());
  const auto [x, y] = rows(0, 4);
  run.backward(x, y, [&](const ls::Tensor& x, const ls::Tensor& y) { return ls::nn::MSELoss()(net(x), y); });
  std::vector<ls::Tensor> first;
  for (const ls::nn::Parameter& piece : run.parameters()) first.push_back(piece->grad().clone());
  for (const ls::nn::Parameter& piece : run.parameters()) piece->set_grad(ls::Tensor());
  loss_of(run, 0, 4).backward();
  std::size_t at = 0;
  for (const ls::nn::Parameter& piece : run.parameters()) CHECK(same_bits(piece->grad(), first[at++]));
}

}  // namespace

TEST_CASE("operator() and loss.backward() give the bits of DistributedDataParallel in every stage") {
  for (const int ranks : {1, 2, 3}) {
    for (int stage = 1; stage <= 3; ++stage) {
      for (const bool reshard : {true, false}) {
        CAPTURE(ranks);
        CAPTURE(stage);
        with_threads("local", ranks, [&](const Group& group) {
          Net replicated, net;
          set_values(replicated);
          set_values(net);
          par::DistributedDataParallel ddp(replicated, group);
          ls::optim::Adam of_ddp(ddp.parameters(), {.lr = 0.01});
          train(ddp, of_ddp, group->rank() * 4);
          const std::vector<ls::Tensor> want = values_of(replicated);
          par::ShardedDataParallel run(net, group, {.stage = stage, .reshard_after_forward = reshard});
          ls::optim::Adam optimizer(run.parameters(), {.lr = 0.01});
          train(run, optimizer, group->rank() * 4);
          run.gathered([&] {
            const std::vector<ls::Tensor> got = values_of(net);
            for (std::size_t p = 0; p < want.size(); ++p) CHECK(same_bits(got[p], want[p]));
          });
        });
      }
    }
  }
}

TEST_CASE("a result of operator() that is destroyed without a backward ends its step") {
  with_threads("local", 2, [](const Group& group) {
    Net net;
    set_values(net);
    par::ShardedDataParallel run(net, group);
    {
      const ls::Tensor y = run(rows(0, 2).first);
      CHECK(error_of([&] { run.gathered([] {}); }) ==
            "ShardedDataParallel: gathered inside a step, or before the backward of operator()'s result");
    }
    run.gathered([] {});
    check_next_step(run, net);
  });
}

TEST_CASE("a loss that outlives its step keeps no gradients, and cannot be used again") {
  with_threads("local", 2, [](const Group& group) {
    Net net;
    set_values(net);
    par::ShardedDataParallel run(net, group);
    ls::optim::SGD optimizer(run.parameters(), {.lr = 0.1});
    ls::Tensor loss = loss_of(run, 0, 4);
    loss.backward();
    std::vector<ls::Tensor> before;
    for (const ls::nn::Parameter& piece : run.parameters()) before.push_back(piece->grad().clone());
    ls::Tensor local;
    {
      const auto guard = run.no_sync();
      local = loss_of(run, 0, 2);
      local.backward();
    }
    std::size_t at = 0;
    for (const ls::nn::Parameter& piece : run.parameters()) CHECK(same_bits(piece->grad(), before[at++]));
    optimizer.zero_grad();
    local = ls::Tensor();
    for (const ls::nn::Parameter& piece : run.parameters()) CHECK(!piece->grad().defined());
    loss_of(run, 0, 4).backward();  // with the gradients of no_sync
    optimizer.step();
    const ls::Tensor stale = loss_of(run, 0, 2);
    for (const ls::nn::Parameter& piece : run.parameters()) piece->set_grad(ls::zeros(piece->shape()));
    optimizer.step();
    CHECK(contains(error_of([&] { stale.backward(); }), "parameters were changed between operator() and its backward"));
    check_next_step(run, net);
  });
}

TEST_CASE("unused_parameters() after an evaluation is that of the last step") {
  with_threads("local", 2, [](const Group& group) {
    Net net;
    set_values(net);
    par::ShardedDataParallel run(net, group, {.units = {"blocks.*", "head"}});  // the result is a unit's output
    loss_of(run, 0, 2).backward();
    const std::int64_t copies = run.stats().copies;
    {
      const ls::NoGradGuard no_grad;
      run(rows(0, 2).first);
    }
    CHECK(run.unused_parameters().empty());
    loss_of(run, 0, 2).backward();
    CHECK(run.stats().copies == copies);
    check_next_step(run, net);
  });
}

TEST_CASE("autograd::grad through operator() takes part in no step") {
  with_threads("local", 2, [](const Group& group) {
    Net net;
    set_values(net);
    par::ShardedDataParallel run(net, group);
    const ls::Tensor x = rows(0, 2).first.clone().requires_grad_();
    const ls::Tensor y = run(x);
    const ls::Tensor slope = ls::autograd::grad({ls::sum(y)}, {x})[0];
    CHECK(slope.shape() == x.shape());
    check_next_step(run, net);
  });
}

TEST_CASE("an exception in forward or backward of operator() leaves nothing behind") {
  with_threads("local", 2, [](const Group& group) {
    Net net;
    set_values(net);
    par::ShardedDataParallel run(net, group);
    struct Failure : std::runtime_error {
      using std::runtime_error::runtime_error;
    };
    {
      ls::HookHandle hook =
          net.blocks[1].register_forward_hook([](const ls::nn::Module&, const std::vector<ls::Tensor>&,
                                                 const ls::Tensor&) -> ls::Tensor { throw Failure("forward"); });
      CHECK_THROWS(run(rows(0, 2).first));
      hook.remove();
    }
    check_next_step(run, net);
    {
      ls::HookHandle hook = net.blocks[1].register_forward_hook(
          [](const ls::nn::Module&, const std::vector<ls::Tensor>&, const ls::Tensor& y) {
            y.register_hook([](const ls::Tensor&) -> ls::Tensor { throw Failure("backward"); });
            return ls::Tensor();
          });
      CHECK_THROWS(loss_of(run, 0, 2).backward());
      hook.remove();
    }
    check_next_step(run, net);
  });
}

TEST_CASE("operator() refuses what it cannot reduce") {
  with_threads("local", 2, [](const Group& group) {
    Net net, weighted, alone;
    set_values(net);
    {
      par::ShardedDataParallel run(net, group, {.micro_batches_per_rank = 2});
      CHECK(error_of([&] { run(rows(0, 2).first); }) ==
            "ShardedDataParallel: operator() with 2 micro-batches per rank; call backward(x, y, loss_fn)");
    }
    {
      par::ShardedDataParallel run(weighted, group, {.weighting = par::Weighting::kSamples});
      CHECK(contains(error_of([&] { run(rows(0, 2).first); }), "weighted by samples"));
    }
    ls::Tensor loss;
    {
      par::ShardedDataParallel run(alone, group);
      loss = loss_of(run, 0, 2);
      loss.backward(ls::BackwardOptions{.retain_graph = true});
      CHECK(contains(error_of([&] { loss.backward(); }), "a second backward in a step that is over"));
      loss = loss_of(run, 0, 2);
    }
    CHECK(contains(error_of([&] { loss.backward(); }), "backward after the ShardedDataParallel was destroyed"));
    CHECK(contains(error_of([&] { ls::sum(*alone.head.weight); }), "its ShardedDataParallel was destroyed"));
  });
}
