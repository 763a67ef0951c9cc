// DistributedDataParallel's invariants, with ranks as threads.
#include "tests/support/groups.h"

namespace {

using ls::parallel::DistributedDataParallel;
using ls::parallel::DistributedDataParallelOptions;

struct Mlp : ls::nn::Module {
  ls::nn::Linear& fc1 = add<ls::nn::Linear>("fc1", 4, 8);
  ls::nn::Linear& fc2 = add<ls::nn::Linear>("fc2", 8, 2);
  ls::nn::Linear& spare = add<ls::nn::Linear>("spare", 8, 2);
  // Threads share the random streams, so initial values are set here.
  explicit Mlp(std::uint32_t salt) {
    const ls::NoGradGuard no_grad;
    for (const ls::nn::Parameter& p : parameters()) p->copy_(numbers(p->shape(), {}, ++salt));
  }
  ls::Tensor forward(const ls::Tensor& x) const override { return fc2(ls::relu(fc1(x))); }
};

// Rows [first, first + count) of one data set.
ls::Tensor inputs(std::int64_t first, std::int64_t count) { return numbers({32, 4}, {}, 90).narrow(0, first, count); }
ls::Tensor targets(std::int64_t first, std::int64_t count) { return numbers({32, 2}, {}, 91).narrow(0, first, count); }

// The gradients of one process that runs rows [0, rows) as one batch.
std::vector<ls::Tensor> whole_gradients(std::int64_t rows) {
  Mlp model(0);
  ls::nn::MSELoss()(model(inputs(0, rows)), targets(0, rows)).backward();
  std::vector<ls::Tensor> grads;
  for (const ls::nn::Parameter& p : model.parameters()) grads.push_back(p->grad());
  return grads;
}

void check_gradients(const Mlp& model, const std::vector<ls::Tensor>& want) {
  const auto named = model.named_parameters();
  for (std::size_t i = 0; i < named.size(); ++i) {
    INFO(named[i].first);
    const ls::Tensor grad = named[i].second->grad();
    CHECK(grad.defined() == want[i].defined());
    if (grad.defined() && want[i].defined()) check_close(grad, want[i], named[i].first, {1e-5, 1e-6});
  }
}

}  // namespace

TEST_CASE("gradients are the mean over the ranks, parameters start as rank 0's, and no gradient is copied") {
  const std::vector<ls::Tensor> want = whole_gradients(24);
  for (const int ranks : {1, 2, 3, 4}) {
    with_group("local", ranks, [&](const Group& group) {
      const int rank = group->rank();
      Mlp model(static_cast<std::uint32_t>(100 * rank));  // other initial values on every rank
      DistributedDataParallel ddp(model, group);
      const std::int64_t rows = 24 / ranks;
      for (int step = 0; step < 3; ++step) {
        model.zero_grad();
        ls::nn::MSELoss()(ddp(inputs(rank * rows, rows)), targets(rank * rows, rows)).backward();
        check_gradients(model, want);
      }
      CHECK(ddp.stats().copies == 0);
      CHECK(ddp.stats().steps == 3);
      CHECK(ddp.unused_parameters() == std::vector<std::string>{"spare.weight", "spare.bias"});
      model.zero_grad();
      ddp.backward(inputs(rank * rows, rows), targets(rank * rows, rows),
                   [&](const ls::Tensor& x, const ls::Tensor& y) { return ls::nn::MSELoss()(model(x), y); });
      check_gradients(model, want);
    });
  }
}

TEST_CASE("a parameter that one rank uses gets its gradient on all ranks, divided by the number of ranks") {
  with_group("local", 3, [&](const Group& group) {
    Mlp model(0);
    DistributedDataParallel ddp(model, group);
    const ls::Tensor hidden = ls::relu(model.fc1(inputs(0, 8)));
    const ls::Tensor out = group->rank() == 1 ? model.spare(hidden) : model.fc2(hidden);
    ls::nn::MSELoss()(out, targets(0, 8)).backward();
    Mlp reference(0);
    ls::nn::MSELoss()(reference.spare(ls::relu(reference.fc1(inputs(0, 8)))), targets(0, 8)).backward();
    check_close(model.spare.weight->grad(), reference.spare.weight->grad() / 3, "spare.weight", {1e-5, 1e-7});
    CHECK(model.fc2.weight->grad().defined());
    CHECK(ddp.unused_parameters().size() == 2);
  });
}

TEST_CASE("no_sync prevents the reduction of a backward inside it, and the next backward reduces the sum") {
  with_group("local", 2, [&](const Group& group) {
    const int rank = group->rank();
    const auto loss = [&](auto& net, int part) {
      return ls::nn::MSELoss()(net(inputs(8 * part + 4 * rank, 4)), targets(8 * part + 4 * rank, 4));
    };
    Mlp model(0), alone(0);
    DistributedDataParallel ddp(model, group);
    const ls::Tensor outside = loss(ddp, 0);  // forward outside no_sync, backward inside
    {
      const auto guard = ddp.no_sync();
      outside.backward();
    }
    loss(alone, 0).backward();
    CHECK(same_bits(model.fc1.weight->grad(), alone.fc1.weight->grad()));
    loss(ddp, 1).backward();

    Mlp both(0);
    (ls::nn::MSELoss()(both(inputs(0, 8)), targets(0, 8)) + ls::nn::MSELoss()(both(inputs(8, 8)), targets(8, 8)))
        .backward();
    check_close(model.fc1.weight->grad(), both.fc1.weight->grad(), "fc1.weight", {1e-5, 1e-6});
    check_close(model.fc2.bias->grad(), both.fc2.bias->grad(), "fc2.bias", {1e-5, 1e-6});
  });
}

TEST_CASE(
    "backward() adds to accumulated gradients: means over the ranks are kept, a rank's own gradients are reduced") {
  with_group("local", 2, [&](const Group& group) {
    const int rank = group->rank();
    Mlp model(0), both(0);
    DistributedDataParallel ddp(model, group, {.micro_batches_per_rank = 2});
    const auto step = [&](int part) {
      ddp.backward(inputs(8 * part + 4 * rank, 4), targets(8 * part + 4 * rank, 4),
                   [&](const ls::Tensor& x, const ls::Tensor& y) { return ls::nn::MSELoss()(model(x), y); });
    };
    step(0);
    step(1);  // without zero_grad
    for (int part : {0, 1}) ls::nn::MSELoss()(both(inputs(8 * part, 8)), targets(8 * part, 8)).backward();
    check_close(model.fc1.weight->grad(), both.fc1.weight->grad(), "twice", {1e-5, 1e-6});

    model.zero_grad();
    both.zero_grad();
    {
      const auto guard = ddp.no_sync();
      step(0);
    }
    step(1);
    const ls::Tensor got = model.fc1.weight->grad();
    // a mean over this rank's micro-batches in no_sync, over all ranks' in the synchronised step
    for (int part : {0, 1}) ls::nn::MSELoss()(both(inputs(8 * part, 8)), targets(8 * part, 8)).backward();
    check_close(got, both.fc1.weight->grad(), "after no_sync", {1e-5, 1e-6});
  });
}

TEST_CASE("weighted by samples, ranks with different numbers of rows give the mean over all rows") {
  const std::vector<ls::Tensor> want = whole_gradients(10);
  with_group("local", 2, [&](const Group& group) {
    const std::int64_t first = group->rank() == 0 ? 0 : 7, count = group->rank() == 0 ? 7 : 3;
    Mlp model(0);
    DistributedDataParallel ddp(model, group, {.weighting = ls::parallel::Weighting::kSamples});
    ls::nn::MSELoss criterion;
    const ls::Tensor loss =
        ddp.backward(inputs(first, count), targets(first, count),
                     [&](const ls::Tensor& x, const ls::Tensor& y) { return criterion(model(x), y); });
    check_gradients(model, want);
    Mlp whole(0);
    check_close(loss, criterion(whole(inputs(0, 10)), targets(0, 10)).detach(), "loss", {1e-5, 1e-6});
  });
}

TEST_CASE("a rank without rows takes part, and the mean is over the micro-batches that ran") {
  const std::vector<ls::Tensor> want = whole_gradients(6);
  with_group("local", 2, [&](const Group& group) {
    Mlp model(0);
    DistributedDataParallel ddp(model, group);
    const std::int64_t count = group->rank() == 0 ? 6 : 0;
    ddp.backward(inputs(0, count), targets(0, count),
                 [&](const ls::Tensor& x, const ls::Tensor& y) { return ls::nn::MSELoss()(model(x), y); });
    check_gradients(model, want);
  });
}

TEST_CASE("a local gradient from no_sync counts as a mean over its rank, for every kind of next step") {
  with_group("local", 2, [&](const Group& group) {
    const int rank = group->rank();
    Mlp model(0), both(0);
    DistributedDataParallel ddp(model, group, {.micro_batches_per_rank = 2});
    ls::nn::MSELoss criterion;
    const auto verb = [&](int part) {
      ddp.backward(inputs(8 * part + 4 * rank, 4), targets(8 * part + 4 * rank, 4),
                   [&](const ls::Tensor& x, const ls::Tensor& y) { return criterion(model(x), y); });
    };
    const auto plain = [&](int part) {
      criterion(ddp(inputs(8 * part + 4 * rank, 4)), targets(8 * part + 4 * rank, 4)).backward();
    };
    for (int part : {0, 1}) criterion(both(inputs(8 * part, 8)), targets(8 * part, 8)).backward();
    for (int kind = 0; kind < 4; ++kind) {
      CAPTURE(kind);
      verb(2);  // an earlier step, whose means must not count as this rank's own gradients
      model.zero_grad();
      {
        const auto guard = ddp.no_sync();
        kind % 2 ? verb(0) : plain(0);
      }
      kind / 2 ? verb(1) : plain(1);
      check_close(model.fc1.weight->grad(), both.fc1.weight->grad(), "fc1.weight", {1e-5, 1e-6});
      model.zero_grad();
    }
    {
      const auto guard = ddp.no_sync();
      ddp.backward(inputs(0, 0), targets(0, 0),
                   [&](const ls::Tensor& x, const ls::Tensor& y) { return criterion(model(x), y); });
      CHECK(!model.fc1.weight->grad().defined());
    }
  });
}

TEST_CASE("parameters may be frozen, unfrozen and converted after construction") {
  with_group("local", 2, [&](const Group& group) {
    const std::int64_t first = 4 * group->rank();
    Mlp model(0), whole(0);
    model.fc2.weight->requires_grad_(false);
    {
      DistributedDataParallel ddp(model, group, {.micro_batches_per_rank = 2});
      const auto step = [&](ls::DType dtype) {
        model.zero_grad();
        ddp.backward(inputs(first, 4).to(dtype), targets(first, 4).to(dtype),
                     [&](const ls::Tensor& x, const ls::Tensor& y) { return ls::nn::MSELoss()(model(x), y); });
      };
      ls::nn::MSELoss()(whole(inputs(0, 8)), targets(0, 8)).backward();
      step(ls::kFloat32);
      CHECK(!model.fc2.weight->grad().defined());
      check_close(model.fc1.weight->grad(), whole.fc1.weight->grad(), "fc1", {1e-5, 1e-6});
      model.fc2.weight->requires_grad_(true);
      step(ls::kFloat32);
      check_close(model.fc2.weight->grad(), whole.fc2.weight->grad(), "fc2", {1e-5, 1e-6});
      model.to(ls::kFloat64);
      step(ls::kFloat64);
      CHECK(model.fc2.weight->grad().dtype() == ls::kFloat64);
      check_close(model.fc2.weight->grad().to(ls::kFloat32), whole.fc2.weight->grad(), "fc2", {1e-5, 1e-6});
      model.fc1.weight->requires_grad_(false);
    }  // the destructor runs with a frozen parameter
    model.zero_grad();
  });
}

TEST_CASE("buckets made after others on the same model keep their views") {
  with_group("local", 2, [&](const Group& group) {
    Mlp model(0);
    auto ddp = std::make_unique<DistributedDataParallel>(model, group);
    ddp = std::make_unique<DistributedDataParallel>(model, group);  // the old reducer still exists
    ls::nn::MSELoss()((*ddp)(inputs(0, 4)), targets(0, 4)).backward();
    CHECK(ddp->stats().copies == 0);
  });
}

TEST_CASE("gradients of create_graph are averaged, and a warning says that they lose their history") {
  auto seen = std::make_shared<std::vector<std::string>>();
  ls::on_warning([seen](const std::string& message) { seen->push_back(message); });
  const std::vector<ls::Tensor> want = whole_gradients(8);
  with_group("local", 2, [&](const Group& group) {
    const std::int64_t first = 4 * group->rank();
    Mlp model(0);
    DistributedDataParallel ddp(model, group);
    for (int step = 0; step < 2; ++step) {
      model.zero_grad();
      ls::nn::MSELoss()(ddp(inputs(first, 4)), targets(first, 4)).backward({.create_graph = true});
      check_gradients(model, want);
      CHECK(!model.fc1.weight->grad().requires_grad());
    }
  });
  ls::on_warning({});
  const auto said = [&](const char* part) {
    return std::ranges::count_if(*seen, [part](const std::string& each) { return contains(each, part); });
  };
  CHECK(said("DistributedDataParallel: gradients of backward with create_graph lose their history") == 1);
  CHECK(said("reference cycle") == 1);
}

TEST_CASE("an error in backward does not affect the next step") {
  with_group("local", 2, [&](const Group& group) {
    const std::vector<ls::Tensor> want = whole_gradients(8);
    const std::int64_t first = 4 * group->rank();
    Mlp model(0);
    DistributedDataParallel ddp(model, group);
    ls::nn::MSELoss criterion;
    const auto fails = [&](const ls::Tensor& x, const ls::Tensor& y) {
      const ls::Tensor out = model(x);
      const ls::Tensor loss = criterion(out * out, y);
      const ls::NoGradGuard no_grad;
      out.add_(1);  // destroys a value that backward needs
      return loss;
    };
    CHECK(contains(error_of([&] { ddp.backward(inputs(first, 4), targets(first, 4), fails); }), "changed in place"));
    model.zero_grad();
    criterion(model(inputs(first, 4)), targets(first, 4)).backward();
    check_gradients(model, want);
  });
}

TEST_CASE("models that differ are an error that names rank and parameter, on every rank") {
  with_group("local", 3, [&](const Group& group) {
    struct Net : ls::nn::Module {
      explicit Net(std::int64_t width) { add<ls::nn::Linear>("body", 4, width); }
    };
    Net net(group->rank() == 2 ? 5 : 6);
    const std::string error = error_of<ls::CommError>([&] { DistributedDataParallel ddp(net, group); });
    CHECK(contains(error, "body.weight"));
    CHECK(contains(error, "(6, 4)"));
    CHECK(contains(error, "(5, 4)"));
    CHECK(contains(error, "rank 2"));
  });
}

TEST_CASE("check_every finds replicas that have diverged, and names the parameter") {
  with_group("local", 2, [&](const Group& group) {
    Mlp model(0);
    DistributedDataParallel ddp(model, group, {.check_every = 2});
    const auto step = [&] {
      model.zero_grad();
      ls::nn::MSELoss()(ddp(inputs(0, 4)), targets(0, 4)).backward();
    };
    step();
    step();
    if (group->rank() == 1) {
      const ls::NoGradGuard no_grad;
      model.fc2.bias->add_(1);
    }
    step();
    const std::string error = error_of<ls::CommError>(step);
    CHECK(contains(error, "fc2.bias"));
    CHECK(contains(error, "rank 1"));
  });
}

TEST_CASE("two models on one group, and a later model without DistributedDataParallel, do not disturb each other") {
  const std::vector<ls::Tensor> want = whole_gradients(8);
  with_group("local", 2, [&](const Group& group) {
    const int rank = group->rank();
    Mlp a(0), b(0);
    {
      DistributedDataParallel first(a, group), second(b, group);
      const ls::Tensor x = inputs(4 * rank, 4), y = targets(4 * rank, 4);
      (ls::nn::MSELoss()(first(x), y) + ls::nn::MSELoss()(second(x), y)).backward();
      check_gradients(a, want);
      check_gradients(b, want);
    }
    a.zero_grad();
    if (rank == 0) {  // the other ranks do not take part: the hooks are removed
      ls::nn::MSELoss()(a(inputs(0, 8)), targets(0, 8)).backward();
      check_gradients(a, want);
    }
  });
}

TEST_CASE("parameters on several devices: devices are compared by order, buckets do not mix them") {
  with_group("local", 2, [&](const Group& group) {
    const ls::Device d0("cpu:" + std::to_string(2 * group->rank())), d1("cpu:" + std::to_string(2 * group->rank() + 1));
    Mlp model(0), whole(0);
    model.fc1.to(d0);
    model.fc2.to(d1);
    model.spare.to(d1);
    DistributedDataParallel ddp(model, group);
    const std::int64_t first = 4 * group->rank();
    const ls::Tensor hidden = ls::relu(model.fc1(inputs(first, 4).to(d0)));
    ls::nn::MSELoss()(model.fc2(hidden.to(d1)), targets(first, 4).to(d1)).backward();
    ls::nn::MSELoss()(whole(inputs(0, 8)), targets(0, 8)).backward();
    check_close(model.fc1.weight->grad().to(ls::Device()), whole.fc1.weight->grad(), "fc1", {1e-5, 1e-6});
    check_close(model.fc2.weight->grad().to(ls::Device()), whole.fc2.weight->grad(), "fc2", {1e-5, 1e-6});
    CHECK(ddp.stats().buckets.size() == 2);
  });
}

TEST_CASE("traffic: a step of DistributedDataParallel sends 2 (n-1) / n of the gradients per rank, divisible or not") {
  for (int n = 1; n <= 9; ++n) {
    std::vector<std::int64_t> sent(static_cast<std::size_t>(n));
    std::int64_t bytes = 0;
    with_group("local", n, [&](const Group& group) {
      Mlp model(0);
      DistributedDataParallel ddp(model, group);
      group->traffic().clear();
      ls::nn::MSELoss()(ddp(inputs(0, 4)), targets(0, 4)).backward();
      sent[static_cast<std::size_t>(group->rank())] = group->traffic().bytes(ls::parallel::Phase::kGradients);
      if (group->rank() == 0) bytes = ddp.stats().reduced_bytes;
    });
    CAPTURE(n);
    std::int64_t total = 0;
    for (const std::int64_t each : sent) {
      total += each;
      CHECK(std::abs(each - 2 * (n - 1) * bytes / n) <= 8 * n);  // elements do not always divide evenly
    }
    CHECK(total == 2 * (n - 1) * bytes);
  }
}

TEST_CASE(
    "a step that fails in its last backward loses no gradients accumulated in no_sync, and the next step is right") {
  with_group("local", 1, [](const Group& group) {
    Mlp model(0);
    DistributedDataParallel ddp(model, group);
    const auto loss_fn = [&](const ls::Tensor& x, const ls::Tensor& y) { return ls::nn::MSELoss()(model(x), y); };
    {
      const auto guard = ddp.no_sync();
      ddp.backward(inputs(0, 4), targets(0, 4), loss_fn);
    }
    const ls::Tensor before = model.fc2.weight->grad().clone();
    {
      // fc2's gradient is complete, and has joined the accumulated one, when fc1's hook throws.
      auto hook = model.fc1.weight->register_hook([](const ls::Tensor&) -> ls::Tensor { throw ls::IoError("a hook"); });
      CHECK_THROWS_AS(ddp.backward(inputs(4, 4), targets(4, 4), loss_fn), ls::IoError);
      hook.remove();
    }
    CHECK(same_bits(model.fc2.weight->grad(), before));
    ddp.backward(inputs(4, 4), targets(4, 4), loss_fn);
    const std::vector<ls::Tensor> want = [] {
      Mlp same(0);
      ls::nn::MSELoss()(same(inputs(0, 4)), targets(0, 4)).backward();
      ls::nn::MSELoss()(same(inputs(4, 4)), targets(4, 4)).backward();
      std::vector<ls::Tensor> grads;
      for (const ls::nn::Parameter& p : same.parameters()) grads.push_back(p->grad());
      return grads;
    }();
    check_gradients(model, want);
  });
}

TEST_CASE("while all parameters are frozen the forward works, and backward says that nothing is trained") {
  with_group("local", 2, [](const Group& group) {
    Mlp model(0);
    DistributedDataParallel ddp(model, group);
    for (const ls::nn::Parameter& p : model.parameters()) p->requires_grad_(false);
    CHECK(ddp(inputs(0, 4)).shape() == ls::Shape{4, 2});
    const std::string error = error_of<ls::InvalidArgument>([&] {
      ddp.backward(inputs(0, 4), targets(0, 4),
                   [&](const ls::Tensor& x, const ls::Tensor& y) { return ls::nn::MSELoss()(model(x), y); });
    });
    CHECK_MESSAGE(contains(error, "no parameter of the module requires grad"), error);
    for (const ls::nn::Parameter& p : model.parameters()) p->requires_grad_(true);
    ls::nn::MSELoss()(ddp(inputs(0, 4)), targets(0, 4)).backward();
    CHECK(model.fc1.weight->grad().defined());
  });
}

TEST_CASE("ranks with different options are told which option differs, and with different models which parameter") {
  with_threads("local", 2, [](const Group& group) {
    ls::nn::Linear net(2, 2);
    const std::string options = error_of<ls::CommError>(
        [&] { ls::parallel::DistributedDataParallel(net, group, {.check_every = group->rank()}); });
    CHECK_MESSAGE(contains(options, "ranks have different options: rank 0 has check_every 0, rank 1 has check_every 1"),
                  options);
    ls::nn::Linear wide(2, 2 + group->rank());
    const std::string models = error_of<ls::CommError>([&] { ls::parallel::DistributedDataParallel(wide, group); });
    CHECK_MESSAGE(contains(models, "ranks have different models: rank 0 has weight (2, 2) f32"), models);
  });
}
