#include "tests/support/testing.h"

namespace {

using ls::parallel::DataParallel;
using ls::parallel::Phase;

struct Net : ls::nn::Module {
  ls::nn::Linear& fc1 = add<ls::nn::Linear>("fc1", 4, 8);
  ls::nn::Linear& fc2 = add<ls::nn::Linear>("fc2", 8, 2);
  ls::Tensor forward(const ls::Tensor& x) const override { return fc2(ls::relu(fc1(x))); }
};

std::vector<ls::Device> devices(int count) {
  std::vector<ls::Device> out;
  for (int i = 0; i < count; ++i) out.emplace_back("cpu:" + std::to_string(i));
  return out;
}

}  // namespace

TEST_CASE("outputs and gradients equal those of one device, for every number of rows and devices") {
  for (int n = 1; n <= 4; ++n) {
    for (const std::int64_t rows : {1, 2, 3, 5, 8}) {
      CAPTURE(n);
      CAPTURE(rows);
      ls::manual_seed(1);
      Net model;
      DataParallel parallel(model, devices(n));
      const ls::Tensor x = numbers({rows, 4}), y = numbers({rows, 2}, {}, 2);
      ls::nn::MSELoss criterion;
      const ls::Tensor want = model(x);
      criterion(want, y).backward();
      std::vector<ls::Tensor> grads;
      for (const auto& p : model.parameters()) grads.push_back(p->grad());
      model.zero_grad();
      for (int step = 0; step < 2; ++step) {
        model.zero_grad();
        const ls::Tensor have = parallel(x);
        check_close(have.detach(), want.detach(), "output", {1e-6, 1e-7});
        criterion(have, y).backward();
        const auto parameters = model.parameters();
        for (std::size_t i = 0; i < grads.size(); ++i)
          check_close(parameters[i]->grad(), grads[i], "gradient", {1e-5, 1e-6});
      }
    }
  }
}

TEST_CASE("a loss outside gives the bits of backward() where micro-batches are equal and a power of two") {
  for (const int n : {1, 2, 4}) {
    CAPTURE(n);
    Net model;
    DataParallel parallel(model, devices(n));
    const ls::Tensor x = numbers({12, 4}), y = numbers({12, 2}, {}, 2);
    ls::nn::MSELoss criterion;
    parallel.backward(x, y, [&](const ls::Tensor& x, const ls::Tensor& y) { return criterion(model(x), y); });
    std::vector<ls::Tensor> grads;
    for (const auto& p : model.parameters()) grads.push_back(p->grad().clone());
    model.zero_grad();
    criterion(parallel(x), y).backward();
    const auto parameters = model.parameters();
    for (std::size_t i = 0; i < grads.size(); ++i) CHECK(same_bits(parameters[i]->grad(), grads[i]));
  }
}

TEST_CASE("replicas get parameters only after a change, and the traffic counters record all bytes") {
  Net model;
  DataParallel parallel(model, devices(3));
  ls::optim::SGD optimizer(model.parameters(), {.lr = 0.1});
  const std::int64_t bytes = 4 * (8 * 4 + 8 + 2 * 8 + 2);
  const ls::Tensor x = numbers({9, 4}), y = numbers({9, 2}, {}, 2);
  const auto forward_backward = [&] {
    optimizer.zero_grad();
    ls::nn::MSELoss()(parallel(x), y).backward();
  };
  forward_backward();
  const auto& book = parallel.traffic();
  CHECK(book.bytes(Phase::kParameters) == 2 * bytes);
  CHECK(book.bytes(Phase::kGradients) == 2 * bytes);
  CHECK(book.bytes(Phase::kInputs) == 4 * 6 * 4);
  CHECK(book.bytes(Phase::kOutputs) == 4 * 6 * 2);
  CHECK(book.bytes(Phase::kLossGradient) == 4 * 6 * 2);
  CHECK(book.bytes_from(0) + book.bytes_to(0) == book.bytes());  // all transfers involve the first device
  forward_backward();                                            // no parameter has changed
  CHECK(book.bytes(Phase::kParameters) == 2 * bytes);
  optimizer.step();
  forward_backward();
  CHECK(book.bytes(Phase::kParameters) == 4 * bytes);
  CHECK(book.steps() == 3);
  std::int64_t in_last_step = 0;
  for (const auto& link : book.step_links()) in_last_step += link.phase == Phase::kParameters ? link.bytes : 0;
  CHECK(in_last_step == 2 * bytes);
}

TEST_CASE("2 (n-1) times the parameters' bytes pass the first device, divisible or not") {
  for (int n = 1; n <= 9; ++n) {
    for (const std::int64_t rows : {1, 7, 20}) {
      CAPTURE(n);
      CAPTURE(rows);
      Net model;
      DataParallel parallel(model, devices(n));
      const ls::Tensor x = numbers({rows, 4}), y = numbers({rows, 2}, {}, 2);
      const std::int64_t bytes = 4 * (8 * 4 + 8 + 2 * 8 + 2), running = std::min<std::int64_t>(n, rows);
      const std::int64_t first = rows / n + (rows % n > 0 ? 1 : 0);  // rows that stay on the first device
      ls::nn::MSELoss()(parallel(x), y).backward();
      const auto& book = parallel.traffic();
      CHECK(book.bytes(Phase::kParameters) + book.bytes(Phase::kGradients) == 2 * (running - 1) * bytes);
      CHECK(book.bytes(Phase::kInputs) == 4 * 4 * (rows - first));
      CHECK(book.bytes(Phase::kOutputs) == 4 * 2 * (rows - first));
      CHECK(book.bytes_from(0) + book.bytes_to(0) == book.bytes());
    }
  }
}

TEST_CASE("an exception of a replica names the replica and its device, and the next step works") {
  struct Picky : ls::nn::Module {
    ls::nn::Linear& fc = add<ls::nn::Linear>("fc", 2, 1);
    ls::Tensor forward(const ls::Tensor& x) const override {
      if (x.select(0, 0).select(0, 0).item<double>() == 7) throw ls::InvalidArgument("seven");
      return fc(x);
    }
  };
  Picky model;
  DataParallel parallel(model, devices(2));
  const std::string error = error_of([&] { parallel(ls::tensor({{1.0, 1.0}, {7.0, 1.0}})); });
  CHECK(contains(error, "replica 1 on cpu:1"));
  CHECK(contains(error, "seven"));
  CHECK(parallel(ls::tensor({{1.0, 1.0}, {2.0, 1.0}})).size(0) == 2);
  const ls::Tensor x = numbers({4, 2}), y = numbers({4, 1});
  for (int repeat = 0; repeat < 50; ++repeat) {  // both throw, in either order
    const std::string other = error_of<ls::Error>([&] {
      parallel.backward(x, y,
                        [&](const ls::Tensor&, const ls::Tensor&) -> ls::Tensor { throw std::range_error("mine"); });
    });
    CHECK(contains(other, "replica 0 on cpu"));
    CHECK(contains(other, "mine"));
  }
}

TEST_CASE("misuse is an error that names the cause") {
  Net model;
  CHECK(contains(error_of([&] { DataParallel parallel(model, {}); }), "no devices"));
  CHECK(contains(error_of([&] { DataParallel parallel(model, {"cpu:1", "cpu:2"}); }), "fc1.weight is on cpu"));
  DataParallel parallel(model, devices(2));
  const auto verb = [&](const ls::Tensor& x, const ls::Tensor& y) {
    parallel.backward(x, y, [&](const ls::Tensor& x, const ls::Tensor&) { return ls::sum(model(x)); });
  };
  CHECK(contains(error_of([&] { verb(numbers({4, 4}), numbers({3, 2})); }), "different numbers of rows"));
  CHECK(contains(error_of([&] { verb(ls::zeros({0, 4}), ls::zeros({0, 2})); }), "no rows"));
  CHECK(contains(error_of([&] {
                   parallel.backward(numbers({4, 4}), numbers({4, 2}),
                                     [&](const ls::Tensor& x, const ls::Tensor&) { return model(x); });
                 }),
                 "expected one number"));
}

TEST_CASE("without devices a module on the CPU runs on its own device, with the same bits") {
  Net model;
  const ls::Tensor x = numbers({6, 4}), y = numbers({6, 2});
  const auto loss = [&](const ls::Tensor& x, const ls::Tensor& y) { return ls::nn::mse_loss(model(x), y); };
  DataParallel parallel(model);
  CHECK(same_bits(parallel(x).detach(), model(x).detach()));
  parallel.backward(x, y, loss);
  const ls::Tensor grad = model.fc1.weight->grad().clone();
  model.zero_grad();
  loss(x, y).backward();
  CHECK(same_bits(grad, model.fc1.weight->grad()));
  model.to("cpu:3");
  CHECK(DataParallel(model)(x.to("cpu:3")).device() == ls::Device("cpu:3"));
}

TEST_CASE("several inputs are split in the same way and passed to the module's forward_inputs") {
  struct Two : ls::nn::Module {
    ls::nn::Linear& fc = add<ls::nn::Linear>("fc", 4, 2);
    ls::Tensor forward_inputs(const std::vector<ls::Tensor>& inputs) const override {
      return fc(inputs[0]) * inputs[1];
    }
  };
  Two model;
  DataParallel parallel(model, devices(3));
  const ls::Tensor a = numbers({7, 4}), b = numbers({7, 2}, {}, 2);
  ls::sum(model({a, b})).backward();
  const ls::Tensor want = model.fc.weight->grad();
  model.zero_grad();
  const ls::Tensor out = parallel({a, b});
  check_close(out.detach(), model({a, b}).detach(), "output", {1e-6, 1e-7});
  ls::sum(out).backward();
  check_close(model.fc.weight->grad(), want, "gradient", {1e-5, 1e-6});
  const std::string error = error_of([&] { parallel({a, numbers({6, 2})}); });
  CHECK(contains(error, "(7, 4) f32 cpu"));
  CHECK(contains(error, "(6, 2) f32 cpu"));
  Net one;
  DataParallel single(one, devices(2));
  CHECK(same_bits(single(std::vector<ls::Tensor>{a}), single(a)));
  CHECK(contains(error_of([&] { single({a, b}); }), "override forward_inputs"));
}

TEST_CASE("the traffic counters have an entry for the output device, whichever device it is") {
  for (const int where : {0, 1, 2, 5}) {  // three devices are in use; index 5 is another one
    CAPTURE(where);
    Net model;
    const ls::Device target("cpu:" + std::to_string(where));
    DataParallel parallel(model, devices(3), {.output_device = target});
    const ls::Tensor x = numbers({9, 4}, {.device = target}), y = numbers({9, 2}, {.device = target}, 2);
    const ls::Tensor out = parallel(x);
    CHECK(out.device() == target);
    ls::nn::MSELoss()(out, y).backward();
    const auto& book = parallel.traffic();
    const int end = std::min(where, 3);
    std::int64_t transfers = 0;
    for (const auto& link : book.links()) {
      if (link.phase == Phase::kInputs || link.phase == Phase::kLossGradient) CHECK(link.from == end);
      if (link.phase == Phase::kOutputs) CHECK(link.to == end);
      transfers += link.phase == Phase::kOutputs ? 1 : 0;
    }
    CHECK(transfers == (where < 3 ? 2 : 3));
    CHECK(book.bytes(Phase::kOutputs) == transfers * 4 * 3 * 2);
    CHECK(book.bytes(Phase::kLossGradient) == transfers * 4 * 3 * 2);
    CHECK(book.bytes(Phase::kInputs) == transfers * 4 * 3 * 4);
  }
}

TEST_CASE("buffers are sent to the replicas in every step, and recorded") {
  struct Counting : ls::nn::Module {
    ls::nn::Linear& fc = add<ls::nn::Linear>("fc", 4, 2);
    ls::nn::Buffer& seen = add_buffer("seen", ls::zeros({6}));
    ls::Tensor forward(const ls::Tensor& x) const override {
      const ls::NoGradGuard no_grad;
      seen->add_(1.0);
      const ls::EnableGradGuard grad;
      return fc(x) * seen->select(0, 0);
    }
  };
  Counting model;
  DataParallel parallel(model, devices(3));
  for (int step = 1; step <= 2; ++step) {
    const ls::Tensor out = parallel(numbers({6, 4}));
    CHECK(ls::equal(*model.seen, ls::full({6}, 1.0 * step)));  // the first replica's buffer
    CHECK(parallel.traffic().bytes(Phase::kBuffers) == step * 2 * 6 * 4);
  }
}

TEST_CASE("parameters are sent again after they were replaced") {
  Net model;
  DataParallel parallel(model, devices(2));
  const ls::Tensor x = numbers({4, 4});
  parallel(x);
  for (int i = 0; i < 4; ++i) {
    model.to(ls::kFloat64);
    model.to(ls::kFloat32);
    const ls::NoGradGuard no_grad;
    for (const ls::nn::Parameter& p : model.parameters()) p->mul_(2.0);
    check_close(parallel(x), model(x), "output", {1e-6, 1e-7});
  }
}

TEST_CASE("a step that fails keeps the accumulated gradients") {
  Net model;
  DataParallel parallel(model, devices(2));
  const ls::Tensor x = numbers({4, 4}), y = numbers({4, 2}, {}, 2);
  ls::nn::MSELoss criterion;
  criterion(model(x), y).backward();
  const ls::Tensor stood = model.fc1.weight->grad().clone();
  const auto step = [&](bool fail) {
    parallel.backward(x, y, [&, fail](const ls::Tensor& x, const ls::Tensor& y) {
      if (fail && x.device() == ls::Device("cpu:1")) throw ls::InvalidArgument("mine");
      return criterion(model(x), y);
    });
  };
  CHECK(contains(error_of([&] { step(true); }), "replica 1 on cpu:1"));
  CHECK(same_bits(model.fc1.weight->grad(), stood));
  step(false);
  check_close(model.fc1.weight->grad(), stood * 2.0, "gradient", {1e-5, 1e-6});
}

TEST_CASE("large sums, which several replicas share, have the bits of micro-batches in sequence") {
  struct Wide : ls::nn::Module {
    ls::nn::Linear& fc1 = add<ls::nn::Linear>("fc1", 251, 211);
    ls::nn::Linear& fc2 = add<ls::nn::Linear>("fc2", 211, 67);
    ls::Tensor forward(const ls::Tensor& x) const override {
      const ls::Tensor y = fc1(x);
      return x.select(0, 0).select(0, 0).item<double>() > 2 ? ls::sum(y) : ls::sum(fc2(y));  // some skip fc2
    }
  };
  for (const int n : {2, 3, 5}) {
    CAPTURE(n);
    Wide model;
    const ls::Tensor x = numbers({2 * n, 251}), y = numbers({2 * n, 1});
    x.select(0, 0).select(0, 0).fill_(3.0);
    const auto gradients_of = [&](auto&& run) {
      model.zero_grad();
      run.backward(x, y, [&](const ls::Tensor& x, const ls::Tensor&) { return model(x); });
      std::vector<ls::Tensor> grads;
      for (const auto& p : model.parameters()) grads.push_back(p->grad());
      return grads;
    };
    const auto want = gradients_of(ls::parallel::GradientAccumulation(model, {.micro_batches = n}));
    const auto have = gradients_of(DataParallel(model, devices(n)));
    for (std::size_t i = 0; i < want.size(); ++i) CHECK(same_bits(have[i], want[i]));
  }
}

TEST_CASE("DataParallel inside a replica is refused") {
  struct Nested : ls::nn::Module {
    Net& body = add<Net>("body");
    mutable DataParallel inner{body, devices(2)};
    ls::Tensor forward(const ls::Tensor& x) const override { return inner(x); }
  };
  Nested model;
  DataParallel outer(model, devices(2));
  CHECK(contains(error_of([&] { outer(numbers({4, 4})); }), "cannot run inside a replica"));
}

TEST_CASE("dropout in a DataParallel that a module's forward runs draws what it draws without DataParallel") {
  struct Outer : ls::nn::Module {
    ls::nn::Sequential& body = add<ls::nn::Sequential>("body", ls::nn::Linear(3, 3), ls::nn::Dropout(0.5));
    DataParallel* parallel = nullptr;
    ls::Tensor forward(const ls::Tensor& x) const override { return parallel ? (*parallel)(x) : body(x); }
  };
  ls::manual_seed(3);
  Outer outer;
  DataParallel parallel(outer.body, devices(2));
  const ls::Tensor x = ls::ones({12, 3});
  ls::manual_seed(3);
  std::vector<ls::Tensor> parts;
  for (int r = 0; r < 2; ++r) {
    const ls::random::MicroBatchGuard micro_batch(r);
    parts.push_back(outer(x.narrow(0, 6 * r, 6)));
  }
  ls::manual_seed(3);
  outer.parallel = &parallel;
  CHECK(ls::equal(outer(x), ls::cat(parts)));
}
