#include "tests/parallel/replicated/several_models.h"

#include <barrier>

using ls::parallel::DistributedDataParallel;
using ls::parallel::Phase;
using Net = PartlyUsed;

TEST_CASE("two models in one backward: ranks leave parameters unused and run forward in different orders") {
  for (const int ranks : {2, 3}) {
    for (const double cap : {25.0, 0.0001, 0.0005}) {  // one bucket per model, one per parameter, and in between
      CAPTURE(ranks);
      CAPTURE(cap);
      with_group("local", ranks, [&](const Group& group) { train_two_models(group, cap); });
    }
  }
}

TEST_CASE("more buckets than a group takes in flight, started in opposite orders") {
  struct Many : ls::nn::Module {
    explicit Many(std::int64_t width) {
      for (int i = 0; i < 40; ++i) add_parameter("p" + std::to_string(i), ls::full({width}, 1.0));
    }
    ls::Tensor forward(const ls::Tensor& x) const override {
      ls::Tensor sum = x;
      for (const ls::nn::Parameter& p : parameters()) sum = sum + ls::sum(*p);
      return sum;
    }
  };
  for (const std::int64_t width : {8, 2000}) {
    CAPTURE(width);
    with_group("local", 2,
               [&](const Group& group) {
                 Many a(width), b(width);
                 DistributedDataParallel first(a, group, {.bucket_cap_mb = 1e-5}),
                     second(b, group, {.bucket_cap_mb = 1e-5});
                 CHECK(first.stats().buckets.size() == 40);
                 for (int step = 0; step < 3; ++step) {
                   a.zero_grad();
                   b.zero_grad();
                   ls::Tensor one, two;
                   if (group->rank() == 0)
                     one = first(ls::zeros({1})), two = second(ls::zeros({1}));
                   else
                     two = second(ls::zeros({1})), one = first(ls::zeros({1}));
                   ls::sum(one + two * 2).backward();
                   CHECK(a.parameters()[0]->grad().max().item<float>() == 1);
                   CHECK(b.parameters()[39]->grad().min().item<float>() == 2);
                 }
               },
               {.timeout = std::chrono::seconds(20)});
  }
}

TEST_CASE("two models trained in turn, and as in a GAN: backward through both, a step of one") {
  with_group("local", 2, [](const Group& group) {
    Net generator(0), critic(10);
    DistributedDataParallel g(generator, group), c(critic, group);
    ls::optim::SGD of_generator(generator.parameters(), {.lr = 0.05}), of_critic(critic.parameters(), {.lr = 0.05});
    const ls::Tensor x = inputs(group->rank());
    for (int step = 0; step < 4; ++step) {
      of_critic.zero_grad();
      mean_square(c(g(x).detach())).backward();
      CHECK((step > 0 || !generator.head.bias->grad().defined()));
      of_critic.step();
      of_generator.zero_grad();
      critic.zero_grad();
      ls::mean(c(g(x))).backward();
      CHECK(critic.head.bias->grad().defined());
      of_generator.step();
    }
    CHECK(g.stats().steps == 4);
    CHECK(c.stats().steps == 8);
    for (const Net* net : {&generator, &critic}) {  // the same on both ranks
      const auto hash = static_cast<std::int64_t>(ls::nn::parameter_hash(*net) >> 1);
      const ls::Tensor all = ls::zeros({2}, {.dtype = ls::kInt64});
      group->all_gather(all, ls::full({1}, 0, {.dtype = ls::kInt64}) + ls::tensor(std::vector<std::int64_t>{hash}))
          ->wait();
      CHECK(all[0].item<std::int64_t>() == all[1].item<std::int64_t>());
    }
  });
}

TEST_CASE("the group's traffic counters record every model on it, one step per backward") {
  with_group("local", 2, [](const Group& group) {
    Net a(0), b(10);
    DistributedDataParallel first(a, group), second(b, group);
    group->traffic().clear();
    loss_of(a, b, group->rank()).backward();
    CHECK(group->traffic().steps() == 1);
    std::int64_t of_step = 0;
    for (const auto& link : group->traffic().step_links()) of_step += link.phase == Phase::kGradients ? link.bytes : 0;
    CHECK(of_step == group->traffic().bytes(Phase::kGradients));
    CHECK(std::abs(of_step - first.stats().reduced_bytes - second.stats().reduced_bytes) <= 16);
    CHECK((group->traffic().bytes(Phase::kBuffers) > 0) == (group->rank() == 0));
  });
}

TEST_CASE("after an error in one backward the next one starts a new step") {
  with_group("local", 2, [](const Group& group) {
    Net model(0);
    DistributedDataParallel ddp(model, group);
    const ls::Tensor x = inputs(0);
    const auto backward = [&](bool fails) {
      const ls::Tensor hidden = model.first(x);
      const ls::Tensor out = model.head(ls::relu(hidden));
      if (fails) {
        const ls::NoGradGuard no_grad;
        x.add_(0);  // destroys what the first layer's backward needs, after the head's backward
      }
      mean_square(out).backward();
    };
    CHECK(contains(error_of([&] { backward(true); }), "changed in place"));
    model.zero_grad();
    backward(false);  // not through ddp(x), which would start a new step
    CHECK(ddp.stats().steps == 1);
    CHECK(model.first.weight->grad().defined());
    CHECK(!model.second.weight->grad().defined());
    Net alone(0);
    mean_square(alone.head(ls::relu(alone.first(x)))).backward();
    check_close(model.first.weight->grad(), alone.first.weight->grad(), "first", {1e-5, 1e-6});
    check_close(model.head.weight->grad(), alone.head.weight->grad(), "head", {1e-5, 1e-6});
  });
}

TEST_CASE("a bucket that is late is named with its parameters and the missing rank") {
  with_group("local", 2,
             [](const Group& group) {
               static std::barrier meeting(2);
               Net model(0);
               DistributedDataParallel ddp(model, group, {.bucket_cap_mb = 0.0003});
               CHECK(ddp.stats().buckets.size() == 2);
               if (group->rank() == 0) {
                 const std::string error = error_of<ls::CommTimeout>([&] { mean_square(ddp(inputs(0))).backward(); });
                 CHECK_MESSAGE(contains(error,
                                        "DistributedDataParallel: bucket 0 of 2 of step 1 still misses other ranks' "
                                        "gradients of head.bias, head.weight, second.bias and 1 more: "),
                               error);
                 CHECK_MESSAGE(contains(error, "rank 1 has not arrived"), error);
               }
               meeting.arrive_and_wait();
             },
             {.timeout = std::chrono::seconds(3)});
}
