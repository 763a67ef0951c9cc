// Mixed precision of ShardedDataParallel: bf16 in forward and backward, f32 for the optimizer and checkpoints.
#include "tests/support/groups.h"

namespace par = ls::parallel;

namespace {

constexpr int kSteps = 3, kMicroBatches = 4, kRows = 16;

struct Net : ls::nn::Module {
  ls::nn::ModuleList& blocks = add<ls::nn::ModuleList>("blocks");
  ls::nn::Linear& head = add<ls::nn::Linear>("head", 5, 1);
  Net() {
    for (int i = 0; i < 3; ++i) blocks.push_back(ls::nn::Linear(5, 5));
    set_values();
    head.bias->requires_grad_(false);
  }
  // The same values in every thread, without the process's random numbers.
  void set_values() {
    const ls::NoGradGuard no_grad;
    double start = 0;
    for (const ls::nn::Parameter& parameter : parameters()) {
      const auto count = static_cast<double>(parameter->numel());
      parameter->copy_(ls::sin(ls::arange(start, start + count)).reshape(parameter->shape()) * 0.4);
      start += count;
    }
  }
  ls::Tensor forward(const ls::Tensor& x) const override {
    ls::Tensor y = x;
    for (ls::nn::Module& block : blocks) y = ls::gelu(block(y));
    return head(y);
  }
};

ls::Tensor inputs() { return ls::cos(ls::arange(0.0, kRows * 5.0)).reshape({kRows, 5}); }

ls::Tensor loss_of(const Net& net, const ls::Tensor& x, const ls::Tensor& y) {
  const ls::Tensor out = net(x);
  CHECK(out.dtype() == ls::kBFloat16);
  return ls::nn::MSELoss()(out.to(ls::kFloat32), y);
}

std::vector<ls::Tensor> values_of(const ls::nn::Module& module) {
  std::vector<ls::Tensor> values;
  for (const ls::nn::Parameter& parameter : module.parameters()) values.push_back(parameter->detach().clone());
  return values;
}

// The f32 parameters after the same steps, with the sums computed by hand.
std::vector<ls::Tensor> reference(bool rounds_sums) {
  Net masters, net;
  net.to(ls::kBFloat16);
  ls::optim::Adam optimizer(masters.parameters(), {.lr = 0.05});
  const std::vector<ls::nn::Parameter> trained = masters.parameters(), rounded = net.parameters();
  const ls::Tensor x = inputs(), y = ls::sum(x, {1}, true);
  for (int step = 0; step < kSteps; ++step) {
    {
      const ls::NoGradGuard no_grad;
      for (std::size_t p = 0; p < trained.size(); ++p) rounded[p]->copy_(*trained[p]);
    }
    std::vector<std::vector<ls::Tensor>> gradients;
    for (int s = 0; s < kMicroBatches; ++s) {
      net.zero_grad();
      const std::int64_t count = kRows / kMicroBatches;
      loss_of(net, x.narrow(0, s * count, count).to(ls::kBFloat16), y.narrow(0, s * count, count)).backward();
      auto& of_micro_batch = gradients.emplace_back();
      for (const ls::nn::Parameter& parameter : rounded)
        of_micro_batch.push_back(parameter->requires_grad() ? parameter->grad().to(ls::kFloat32) : ls::Tensor());
    }
    for (std::size_t p = 0; p < trained.size(); ++p) {
      if (!trained[p]->requires_grad()) continue;
      const ls::Tensor sum = (gradients[0][p] + gradients[1][p]) + (gradients[2][p] + gradients[3][p]);
      trained[p]->set_grad(rounds_sums ? (sum / 4).to(ls::kBFloat16).to(ls::kFloat32) : sum / 4);
    }
    ls::nn::clip_grad_norm_(masters.parameters(), 0.1);
    optimizer.step();
  }
  return values_of(masters);
}

// Trains, and compares this rank's pieces, the gathered parameters and the checkpoint with `want`.
void check_mixed(const Group& group, par::ShardedDataParallelOptions options, const std::vector<ls::Tensor>& want,
                 ls::Device device, const std::string& path) {
  Net net;
  net.to(device);
  options.micro_batches_per_rank = kMicroBatches / group->size();
  par::ShardedDataParallel run(net, group, options);
  ls::optim::Adam optimizer(run.parameters(), {.lr = 0.05});
  const std::int64_t own = kRows / group->size();
  const ls::Tensor x = inputs().narrow(0, own * group->rank(), own);
  const ls::Tensor y = ls::sum(x, {1}, true);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    run.backward(x.to(device), y.to(device),
                 [&](const ls::Tensor& x, const ls::Tensor& y) { return loss_of(net, x, y); });
    std::int64_t copied = 0, sent = 0;
    for (const par::LinkTraffic& link : group->traffic().step_links()) {
      copied += link.phase == par::Phase::kOffload ? link.bytes : 0;
      sent += link.phase != par::Phase::kOffload && link.from == group->rank() ? link.bytes : 0;
    }
    CHECK(copied == run.plan().offload_bytes);
    if (step > 0) CHECK(sent == run.plan().bytes_per_step);  // frozen parameters may be gathered once
    run.clip_grad_norm_(0.1);
    optimizer.step();
  }
  const std::vector<par::ShardedParameter> pieces = run.named_parameters();
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    const ls::Tensor whole = want[p].reshape({want[p].numel()});
    const ls::Tensor piece = pieces[p].parameter->detach();
    CHECK_MESSAGE(same_bits(piece.to(ls::Device()), whole.narrow(0, pieces[p].first, piece.numel())), pieces[p].name);
  }
  run.gathered([&] {
    const std::vector<ls::Tensor> whole = values_of(net);
    for (std::size_t p = 0; p < whole.size(); ++p) {
      CHECK(whole[p].dtype() == ls::kBFloat16);
      CHECK(same_bits(whole[p].to(ls::Device()), want[p].to(ls::kBFloat16)));
    }
  });
  par::save_checkpoint(path, {.model = &run, .optimizer = &optimizer});
  const ls::StateDict saved = ls::load(path);
  for (std::size_t p = 0; p < pieces.size(); ++p) CHECK(same_bits(saved.at("model." + pieces[p].name), want[p]));
  {
    const ls::NoGradGuard no_grad;
    for (const par::ShardedParameter& each : pieces) each.parameter->fill_(0);
  }
  par::load_checkpoint(path, {.model = &run, .optimizer = &optimizer});
  run.gathered([&] {
    const std::vector<ls::Tensor> whole = values_of(net);
    for (std::size_t p = 0; p < whole.size(); ++p)
      CHECK(same_bits(whole[p].to(ls::Device()), want[p].to(ls::kBFloat16)));
  });
}

}  // namespace

TEST_CASE("bf16 parameters give the bits of one process that rounds f32 parameters and sums bf16 gradients in f32") {
  const std::string path = "sharded_mixed.safetensors";
  const std::vector<ls::Tensor> want = reference(false), want_rounded = reference(true);
  for (const int ranks : {1, 2, 4}) {
    for (int stage = 1; stage <= 3; ++stage) {
      for (const bool offload : {false, true}) {
        for (const bool rounds : {false, true}) {
          if (rounds && ranks == 2) continue;  // each rank's sum over two micro-batches is rounded before
          CAPTURE(ranks);
          CAPTURE(stage);
          CAPTURE(offload);
          CAPTURE(rounds);
          par::ShardedDataParallelOptions options = {
              .stage = stage, .mixed_precision = {.parameters = ls::kBFloat16}, .offload_optimizer = offload};
          if (rounds) options.mixed_precision.reduce = ls::kBFloat16;
          with_threads("local", ranks, [&](const Group& group) {
            check_mixed(group, options, rounds ? want_rounded : want, offload ? ls::Device("cpu:1") : ls::Device(),
                        path);
          });
        }
      }
    }
  }
}

TEST_CASE("with .reduce alone, forward and backward compute in the parameters' dtype") {
  with_threads("local", 2, [](const Group& group) {
    Net net;
    par::ShardedDataParallel run(net, group, {.mixed_precision = {.reduce = ls::kBFloat16}});
    const ls::Tensor x = inputs(), y = ls::sum(x, {1}, true);
    run.backward(x, y, [&](const ls::Tensor& x, const ls::Tensor& y) {
      const ls::Tensor out = net(x);
      CHECK(out.dtype() == ls::kFloat32);
      return ls::nn::MSELoss()(out, y);
    });
    for (const ls::nn::Parameter& piece : run.parameters()) {
      const ls::Tensor grad = piece->grad();
      if (!grad.defined()) continue;
      CHECK(grad.dtype() == ls::kFloat32);
      CHECK(same_bits(grad, grad.to(ls::kBFloat16).to(ls::kFloat32)));
    }
  });
}

TEST_CASE("the norm of bf16 gradients without mixed precision is that of one process") {
  for (const int ranks : {1, 2, 3}) {
    with_threads("local", ranks, [](const Group& group) {
      Net whole, net;
      whole.to(ls::kBFloat16);
      net.to(ls::kBFloat16);
      par::GradientAccumulation accumulation(whole, {.micro_batches = group->size()});
      par::ShardedDataParallel run(net, group);
      const std::int64_t each = 4;
      const ls::Tensor x = inputs().narrow(0, 0, each * group->size()).to(ls::kBFloat16), y = ls::sum(x, {1}, true);
      const auto loss_fn = [](const Net& model) {
        return [&model](const ls::Tensor& x, const ls::Tensor& y) {
          return ls::nn::MSELoss()(model(x).to(ls::kFloat32), y.to(ls::kFloat32));
        };
      };
      accumulation.backward(x, y, loss_fn(whole));
      const std::int64_t first = each * group->rank();
      run.backward(x.narrow(0, first, each), y.narrow(0, first, each), loss_fn(net));
      const double want = accumulation.clip_grad_norm_(0.1);
      CHECK(want > 0.1);
      CHECK(run.clip_grad_norm_(0.1) == want);
    });
  }
}

TEST_CASE("mixed precision takes floating-point dtypes, the same on all ranks") {
  with_threads("local", 2, [](const Group& group) {
    Net net;
    CHECK_THROWS_WITH_AS(par::ShardedDataParallel(net, group, {.mixed_precision = {.parameters = ls::kInt64}}),
                         "ShardedDataParallel: .mixed_precision has i64, expected a floating-point dtype, for example "
                         "kBFloat16",
                         ls::InvalidArgument);
    Net other;
    const ls::DType own = group->rank() == 0 ? ls::kBFloat16 : ls::kFloat16;
    CHECK_THROWS_AS(par::ShardedDataParallel(other, group, {.mixed_precision = {.parameters = own}}), ls::CommError);
  });
}
