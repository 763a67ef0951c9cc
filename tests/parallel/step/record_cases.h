// Runs of one model in different layouts, recorded, with a change of one bit if wanted.
#pragma once

#include <bit>
#include <filesystem>
#include <optional>
#include <random>
#include <set>
#include <span>

#include "lockstep/tensor/random/random.h"
#include "tests/support/groups.h"
#include "tools/diff/first_difference.h"

namespace {

namespace par = ls::parallel;
namespace nn = ls::nn;

constexpr int kMicroBatches = 4, kSteps = 3, kWidth = 6;

struct Block : nn::Module {
  nn::LayerNorm& norm = add<nn::LayerNorm>("norm", ls::Shape{kWidth});
  nn::Linear& fc = add<nn::Linear>("fc", kWidth, kWidth);
  nn::Tanh& act = add<nn::Tanh>("act");
  nn::Dropout& drop = add<nn::Dropout>("drop", 0.2);
  bool recomputes = false;
  ls::Tensor forward(const ls::Tensor& x) const override {
    const auto body = [this](const ls::Tensor& in) { return drop(act(fc(norm(in)))); };
    return x + (recomputes ? ls::autograd::checkpoint(body, x) : body(x));
  }
};

struct Net : nn::Module {
  nn::Linear& in = add<nn::Linear>("in", 3, kWidth);
  nn::ModuleList& blocks = add<nn::ModuleList>("blocks");
  nn::BatchNorm1d& norm = add<nn::BatchNorm1d>("norm", kWidth);
  nn::Linear& head = add<nn::Linear>("head", kWidth, 2);
  explicit Net(bool recomputes = false) {
    for (int i = 0; i < 2; ++i) {
      Block block;
      block.recomputes = recomputes;
      blocks.push_back(std::move(block));
    }
    std::uint32_t salt = 0;
    const ls::NoGradGuard no_grad;
    for (const nn::Parameter& p : parameters()) p->copy_(numbers(p->shape(), {}, ++salt));
  }
  ls::Tensor forward(const ls::Tensor& x) const override {
    ls::Tensor y = in(x);
    for (const nn::Module& block : blocks) y = block(y);
    return head(norm(y));
  }
};

struct Layout {
  std::string name;
  int ranks = 1, stage = -1;  // stage 0: DistributedDataParallel; -1: one process
};
const std::vector<Layout> kLayouts = {{"accumulate"},   {"dp"},           {"ddp2", 2, 0},  {"ddp4", 4, 0},
                                      {"stage1", 2, 1}, {"stage2", 4, 2}, {"stage3", 2, 3}};

// A change of one bit.
struct Fault {
  enum class Kind { kNone, kForward, kBackward, kReduction, kOptimizer } kind = Kind::kNone;
  std::string name = {};  // of the module or parameter
  int step = 0, micro_batch = 0, rank = 0;
  std::int64_t element = 0;
};

void flip(const ls::Tensor& t, std::int64_t element, std::uint32_t mask) {
  static_cast<std::uint32_t*>(t.raw_data())[element] ^= mask;
}

// Changes a gradient in the first bucket.
class FaultyHook final : public par::CommHook {
 public:
  FaultyHook(Fault fault, const int& step, int rank) : fault_(std::move(fault)), step_(step), rank_(rank) {}
  std::shared_ptr<par::Work> start(const par::GradBucket& bucket, par::ProcessGroup& group) override {
    for (std::size_t i = 0; i < bucket.names.size(); ++i) {
      if (step_ == fault_.step && bucket.names[i] == fault_.name && rank_ == fault_.rank)
        flip(bucket.gradients[i], fault_.element, 1u << 20);
    }
    return group.all_reduce_scaled(bucket.buffer, 1.0 / group.size());
  }
  std::string describe() const override { return "faulty"; }

 private:
  Fault fault_;
  const int& step_;
  int rank_;
};

nn::Module& module_at(nn::Module& module, const std::string& path) {
  for (nn::Module* const child : module.children()) {
    if (path == child->name()) return *child;
    if (path.starts_with(child->name() + ".")) return module_at(*child, path.substr(child->name().size() + 1));
  }
  return module;
}

void install(nn::Module& model, const Fault& fault, const int& step) {
  nn::Module* const module = &module_at(model, fault.name);
  const auto is_now = [fault, &step] {
    return step == fault.step && ls::random::current_micro_batch() == fault.micro_batch;
  };
  module->register_forward_hook([=](const nn::Module&, const std::vector<ls::Tensor>&, const ls::Tensor& y) {
    if (!is_now() || !ls::autograd::grad_mode()) return ls::Tensor();
    if (fault.kind == Fault::Kind::kForward) flip(y, fault.element, 1);
    if (fault.kind == Fault::Kind::kBackward)
      y.register_hook([=](const ls::Tensor& gradient) {
        const ls::Tensor changed = gradient.contiguous().clone();
        flip(changed, fault.element, 1u << 20);
        return changed;
      });
    return ls::Tensor();
  });
}

void change_parameter(const std::vector<par::ShardedParameter>& parameters, const Fault& fault) {
  for (const par::ShardedParameter& each : parameters) {
    for (std::int64_t i = 0; i < each.part.numel && each.name == fault.name; ++i) {
      if (each.part.at(i) == fault.element) flip(each.parameter.master(), i, 1);
    }
  }
}

// The share of the samples that a rank gets.
struct Share {
  int rank = 0, ranks = 1;
};
template <class Mode>
Share share_of(const Mode& run) {
  return run.group() ? Share{run.group()->rank(), run.group()->size()} : Share{};
}
[[maybe_unused]] Share share_of(const par::Pipeline&) { return {}; }

template <class Mode>
std::uint64_t train(Mode& run, const std::string& directory, const Fault& fault, int& step,
                    bool backward_of_user = false) {
  const auto [rank, ranks] = share_of(run);
  std::optional<par::Recorder> recorder;
  if (!directory.empty()) recorder.emplace(run, directory, par::RecorderOptions{.values = true});
  ls::optim::AdamW optimizer(run.parameters(), {.lr = 0.05});
  const nn::MSELoss criterion;
  const std::int64_t rows = 24 / ranks;
  for (step = 0; step < kSteps; ++step) {
    const auto salt = static_cast<std::uint32_t>(7 + step);
    const ls::Tensor x = numbers({24, 3}, {}, salt).narrow(0, rank * rows, rows),
                     y = numbers({24, 2}, {}, salt + 100).narrow(0, rank * rows, rows);
    optimizer.zero_grad();
    if constexpr (requires { run(x); }) {
      if (backward_of_user) criterion(run(x), y).backward();
    }
    if (!backward_of_user)
      run.backward(x, y, [&](const ls::Tensor& in, const ls::Tensor& out) { return criterion(run.module()(in), out); });
    run.clip_grad_norm_(0.5);
    optimizer.step();
    const bool is_on_all = ranks == 1 || run.named_parameters()[0].parameter.sharding() == nn::Sharding::kPiece;
    if (fault.kind == Fault::Kind::kOptimizer && step == fault.step && (is_on_all || rank == fault.rank))
      change_parameter(run.named_parameters(), fault);
  }
  recorder.reset();
  std::uint64_t hash = 0;
  run.gathered([&] { hash = nn::parameter_hash(run.module()); });
  return hash;
}

struct Variant {
  bool recomputes = false, backward_of_user = false;
};

// Trains and records one layout. Returns the hash of the parameters.
std::uint64_t record(const Layout& layout, const std::string& directory, const Fault& fault = {},
                     const Variant& variant = {}) {
  if (!directory.empty()) std::filesystem::remove_all(directory);
  ls::manual_seed(1);
  if (layout.stage < 0) {
    Net model(variant.recomputes);
    int step = 0;
    install(model, fault, step);
    if (layout.name == "dp") {
      par::DataParallel run(model, {"cpu:0", "cpu:1", "cpu:2", "cpu:3"});
      return train(run, directory, fault, step, variant.backward_of_user);
    }
    par::GradientAccumulation run(model, {.micro_batches = kMicroBatches});
    return train(run, directory, fault, step, variant.backward_of_user);
  }
  std::uint64_t hash = 0;
  with_group("local", layout.ranks, [&](const Group& group) {
    Net model(variant.recomputes);
    int step = 0;
    install(model, fault, step);
    const int micro_batches = kMicroBatches / layout.ranks;
    std::uint64_t own = 0;
    if (layout.stage == 0) {
      par::DistributedDataParallel run(model, group, {.micro_batches_per_rank = micro_batches});
      if (fault.kind == Fault::Kind::kReduction)
        run.register_comm_hook(std::make_shared<FaultyHook>(fault, step, group->rank()));
      own = train(run, directory, fault, step, variant.backward_of_user);
    } else {
      par::ShardedDataParallel run(
          model, group, {.stage = layout.stage, .units = {"blocks.*"}, .micro_batches_per_rank = micro_batches});
      own = train(run, directory, fault, step, variant.backward_of_user);
    }
    if (group->rank() == 0) hash = own;
  });
  return hash;
}

diff::Comparison compare(const std::string& a, const std::string& b) {
  return diff::compare(diff::read_run(a), diff::read_run(b), {});
}

}  // namespace
