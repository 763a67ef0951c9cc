// A strategy of a program's own, in one file on top of parallel/step: local SGD, in which each rank steps alone and the
// parameters are averaged every `period` steps. (Stich, 2019)
#include "lockstep/parallel/step/accumulated_gradients_internal.h"
#include "lockstep/parallel/step/micro_batch_loop_internal.h"
#include "tests/support/groups.h"

namespace {

namespace par = ls::parallel;

class LocalSgd : public par::TrainingStep<LocalSgd> {
 public:
  LocalSgd(ls::nn::Module& module, Group group, int period)
      : module_(module), group_(std::move(group)), period_(period), micro_batches_(module) {}

  ls::Tensor operator()(const ls::Tensor& x) { return module_(x); }
  ls::nn::Module& module() const { return module_; }
  Group group() const { return group_; }
  par::TrainingPlan plan() const { return par::replicated_plan(module_, 1); }
  // After the optimizer's step.
  void step_done() {
    if (++steps_ % period_ != 0) return;
    const ls::NoGradGuard no_grad;
    for (const ls::nn::Parameter& p : module_.parameters()) {
      group_->all_reduce(p.master())->wait();
      p.master().mul_(1.0 / group_->size());
    }
  }

 private:
  friend class par::TrainingStep<LocalSgd>;
  ls::Tensor run(const par::Batch& batch, par::MicroBatchLoss loss_fn) {
    const par::MicroBatchPlan plan{.op = "LocalSgd", .samples = par::rows_of("LocalSgd", batch), .micro_batches = 1};
    par::AccumulatedGradients accumulated(micro_batches_.parameters());
    std::vector<ls::Tensor> losses;
    par::NoObserver none;
    micro_batches_.run(plan, group_->rank(), batch, loss_fn, losses, none, [] {});
    micro_batches_.take_gradients(plan.scale());
    accumulated.add_back();
    return par::combine_losses(losses, plan.scale());
  }

  ls::nn::Module& module_;
  Group group_;
  int period_, steps_ = 0;
  par::MicroBatchesInTurn micro_batches_;
};

}  // namespace

TEST_CASE("local SGD: ranks differ between averages, and are equal after one") {
  with_group("local", 2, [](const Group& group) {
    ls::nn::Linear model(3, 2);
    {
      const ls::NoGradGuard no_grad;
      for (const ls::nn::Parameter& p : model.parameters()) p->fill_(0.5);
    }
    LocalSgd run(model, group, 3);
    ls::optim::SGD optimizer(run.parameters(), {.lr = 0.1});
    const ls::nn::MSELoss criterion;
    const auto salt = static_cast<std::uint32_t>(group->rank());
    const auto spread = [&] {
      const ls::Tensor least = model.weight->detach().clone(), most = least.clone();
      group->all_reduce(least, par::ReduceOp::kMin)->wait();
      group->all_reduce(most, par::ReduceOp::kMax)->wait();
      return (most - least).max().item<float>();
    };
    for (int step = 1; step <= 6; ++step) {
      optimizer.zero_grad();
      run.backward(numbers({4, 3}, {}, salt), numbers({4, 2}, {}, 10 + salt),
                   [&](const ls::Tensor& x, const ls::Tensor& y) { return criterion(model(x), y); });
      run.clip_grad_norm_(1.0);
      optimizer.step();
      run.step_done();
      CHECK((spread() == 0) == (step % 3 == 0));
    }
    par::save_checkpoint("local_sgd.safetensors", {.model = &run, .optimizer = &optimizer});
  });
}
