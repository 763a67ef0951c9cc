// Parameters that are frozen between forward and backward: no mode waits for their gradients, or assigns gradients
// wrongly.
#include "tests/support/groups.h"

namespace {

using ls::parallel::DataParallel;
using ls::parallel::DistributedDataParallel;
using ls::parallel::GradientAccumulation;

// Three layers of one shape, so that a gradient assigned to the wrong parameter would fit.
struct Net : ls::nn::Module {
  ls::nn::Linear& first = add<ls::nn::Linear>("first", 4, 4);
  ls::nn::Linear& middle = add<ls::nn::Linear>("middle", 4, 4);
  ls::nn::Linear& last = add<ls::nn::Linear>("last", 4, 4);
  Net() {  // threads share the random streams, so initial values are set here
    const ls::NoGradGuard no_grad;
    std::uint32_t salt = 0;
    for (const ls::nn::Parameter& p : parameters()) p->copy_(numbers(p->shape(), {}, ++salt));
  }
  ls::Tensor forward(const ls::Tensor& x) const override { return last(ls::tanh(middle(ls::tanh(first(x))))); }
};

const ls::Tensor kX = numbers({8, 4}, {}, 90), kY = numbers({8, 4}, {}, 91);

ls::Tensor loss_of(const ls::Tensor& out, const ls::Tensor& y) { return ls::nn::MSELoss()(out, y); }

std::vector<ls::Tensor> gradients_of_one_process() {
  const Net model;
  loss_of(model(kX), kY).backward();
  std::vector<ls::Tensor> grads;
  for (const ls::nn::Parameter& p : model.parameters()) grads.push_back(p->grad());
  return grads;
}

// Checks the gradients against those of one process; middle.weight has none if `frozen`.
void check_gradients(const Net& model, bool frozen) {
  const std::vector<ls::Tensor> want = gradients_of_one_process();
  const auto named = model.named_parameters();
  for (std::size_t i = 0; i < named.size(); ++i) {
    INFO(named[i].first);
    const ls::Tensor grad = named[i].second.master().grad();
    REQUIRE(grad.defined() == !(frozen && named[i].first == "middle.weight"));
    if (grad.defined()) check_close(grad, want[i], named[i].first, {1e-5, 1e-6});
  }
}

// Freezes the module's own parameter, also inside a replica.
void freeze(const Net& model, bool frozen = true) { model.middle.weight.master().requires_grad_(!frozen); }

}  // namespace

TEST_CASE("DistributedDataParallel: a parameter frozen after the forward on all ranks has no gradient") {
  with_group("local", 2, [&](const Group& group) {
    Net model;
    DistributedDataParallel ddp(model, group);
    const auto rows = [&](const ls::Tensor& t) { return t.narrow(0, 4 * group->rank(), 4); };
    for (int step = 0; step < 2; ++step) {
      const ls::Tensor loss = loss_of(ddp(rows(kX)), rows(kY));
      freeze(model);
      loss.backward();
      check_gradients(model, true);
      freeze(model, false);
      model.zero_grad();
      loss_of(ddp(rows(kX)), rows(kY)).backward();
      check_gradients(model, false);
      model.zero_grad();
    }
    CHECK(ddp.stats().copies == 0);
  });
}

TEST_CASE("DistributedDataParallel: a parameter frozen on one rank alone counts as unused by that rank") {
  with_group("local", 2, [&](const Group& group) {
    Net model, other;
    DistributedDataParallel ddp(model, group);
    const auto rows = [](const ls::Tensor& t, int rank) { return t.narrow(0, 4 * rank, 4); };
    const ls::Tensor loss = loss_of(ddp(rows(kX, group->rank())), rows(kY, group->rank()));
    if (group->rank() == 0) freeze(model);
    loss.backward();
    freeze(model, false);
    loss_of(other(rows(kX, 1)), rows(kY, 1)).backward();
    check_close(model.middle.weight->grad(), other.middle.weight->grad() / 2, "middle.weight", {1e-5, 1e-6});
    check_close(model.first.weight->grad(), gradients_of_one_process()[0], "first.weight", {1e-5, 1e-6});
  });
}

TEST_CASE("DistributedDataParallel::backward: a parameter frozen inside the loss function has no gradient") {
  for (const int micro_batches : {1, 2, 4}) {
    CAPTURE(micro_batches);
    with_group("local", 2, [&](const Group& group) {
      Net model;
      DistributedDataParallel ddp(model, group, {.micro_batches_per_rank = micro_batches});
      const auto rows = [&](const ls::Tensor& t) { return t.narrow(0, 4 * group->rank(), 4); };
      for (const bool frozen : {true, false, true}) {
        model.zero_grad();
        ddp.backward(rows(kX), rows(kY), [&](const ls::Tensor& x, const ls::Tensor& y) {
          freeze(model, false);
          const ls::Tensor out = model(x);
          freeze(model, frozen);
          return loss_of(out, y);
        });
        check_gradients(model, frozen);
        freeze(model, false);
      }
    });
  }
}

TEST_CASE(
    "GradientAccumulation: a parameter frozen inside the loss function has no gradient, or that of the micro-batches "
    "before") {
  for (const int micro_batches : {1, 2, 4}) {
    CAPTURE(micro_batches);
    Net model;
    GradientAccumulation parallel(model, {.micro_batches = micro_batches});
    for (const bool frozen : {true, false, true}) {
      model.zero_grad();
      parallel.backward(kX, kY, [&](const ls::Tensor& x, const ls::Tensor& y) {
        freeze(model, false);
        const ls::Tensor out = model(x);
        freeze(model, frozen);
        return loss_of(out, y);
      });
      check_gradients(model, frozen);
      freeze(model, false);
    }
  }
  // The parameter is frozen before the second backward of the step: the first backward's gradient stays.
  Net model, first;
  GradientAccumulation parallel(model, {.micro_batches = 2});
  int micro_batch = 0;
  parallel.backward(kX, kY, [&](const ls::Tensor& x, const ls::Tensor& y) {
    const ls::Tensor out = model(x);
    if (micro_batch++ == 1) freeze(model);
    return loss_of(out, y);
  });
  loss_of(first(kX.narrow(0, 0, 4)), kY.narrow(0, 0, 4)).backward();
  REQUIRE(model.middle.weight.master().grad().defined());
  check_close(model.middle.weight.master().grad(), first.middle.weight->grad() / 2, "middle.weight", {1e-5, 1e-6});
}

TEST_CASE("DataParallel: a parameter frozen after the forward has no gradient, the others have theirs") {
  for (const int count : {1, 2}) {
    CAPTURE(count);
    std::vector<ls::Device> devices = {"cpu:0", "cpu:1"};
    devices.resize(static_cast<std::size_t>(count));
    Net model;
    DataParallel parallel(model, devices);
    for (const bool frozen : {true, false}) {
      const ls::Tensor loss = loss_of(parallel(kX), kY);
      freeze(model, frozen);
      loss.backward();
      check_gradients(model, frozen);
      freeze(model, false);
      model.zero_grad();
      parallel.backward(kX, kY, [&](const ls::Tensor& x, const ls::Tensor& y) {
        const ls::Tensor out = model(x);
        if (x.device() == ls::Device("cpu:0")) freeze(model, frozen);
        return loss_of(out, y);
      });
      check_gradients(model, frozen);
      freeze(model, false);
      model.zero_grad();
    }
  }
}

TEST_CASE("DataParallel::backward with all parameters frozen inside the loss function leaves no gradients") {
  Net model;
  DataParallel parallel(model, {"cpu:0"});
  const ls::Tensor loss = parallel.backward(kX, kY, [&](const ls::Tensor& x, const ls::Tensor& y) {
    const ls::Tensor out = model(x);
    for (const ls::nn::Parameter& p : model.parameters()) p.master().requires_grad_(false);
    return loss_of(out, y);
  });
  CHECK(loss.item<double>() > 0);
  for (const ls::nn::Parameter& p : model.parameters()) CHECK(!p->grad().defined());
}
