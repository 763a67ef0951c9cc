// A rank is killed or stopped in a step of a model that tensor parallelism has cut, and every other rank gets an error that
// names it. Ranks are processes of shm.
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/parallel/model_parallel/faults.h"

namespace {

namespace par = ls::parallel;
namespace nn = ls::nn;
using model_faults::Board;
using model_faults::kRanks;

// Where the victim is when the others wait for it.
enum class Moment {
  kForward,   // between the two layers
  kBackward,  // there
  kNorm,      // after its gradients, before those of all slices are clipped
  kNextStep,  // before the next step
};

struct Fault {
  int signal;  // SIGKILL or SIGSTOP
  int victim;
  Moment moment;
  int tp = kRanks;  // the other axis of the mesh is dp
  int stage = 0;    // 0: DistributedDataParallel
  bool sequence = false;
  std::int64_t width = 16;

  std::string describe() const {
    return fmt::format("{} of rank {} at moment {}, tp {}, stage {}, sequence {}, width {}",
                       signal == SIGSTOP ? "stop" : "end", victim, static_cast<int>(moment), tp, stage, sequence,
                       width);
  }
};

struct FaultyMlp : nn::Module {
  explicit FaultyMlp(std::int64_t width)
      : up(add<nn::Linear>("up", width, 2 * width)), down(add<nn::Linear>("down", 2 * width, width)) {}
  ls::Tensor forward(const ls::Tensor& x) const override {
    const ls::Tensor y = ls::gelu(up(x));
    if (between) between(y);
    return down(y);
  }
  nn::Linear &up, &down;
  std::function<void(const ls::Tensor& y)> between;
};

struct FaultyNet : nn::Module {
  explicit FaultyNet(std::int64_t width)
      : tokens(add<nn::Embedding>("tokens", 8, width)), mlp(add<FaultyMlp>("mlp", width)) {}
  ls::Tensor forward(const ls::Tensor& ids) const override { return mlp(tokens(ids)); }
  nn::Embedding& tokens;
  FaultyMlp& mlp;
};

// Takes a step without the fault and two from it on, in which every rank but the victim must get an error.
template <class Run>
void take_steps(const Fault& fault, const Group& group, Run& run, FaultyMlp& mlp, Board& board) {
  const ls::Tensor ids = ls::arange(16).reshape({2, 8}) % 8;
  const auto step = [&](Moment moment, bool fails) {
    const auto strike = [&board, signal = fault.signal] { board.strike(signal); };
    mlp.between = nullptr;
    if (fails && moment == Moment::kForward) mlp.between = [&](const ls::Tensor&) { strike(); };
    if (fails && moment == Moment::kBackward)
      mlp.between = [&](const ls::Tensor& y) {
        y.register_hook([strike](const ls::Tensor&) { return strike(), ls::Tensor(); });
      };
    if (fails && moment == Moment::kNextStep) strike();
    run.backward(ids, ids, [&](const ls::Tensor& x, const ls::Tensor&) { return run.module()(x).square().mean(); });
    if (fails && moment == Moment::kNorm) strike();
    run.clip_grad_norm_(1.0);
  };
  step(Moment::kForward, false);
  std::string error;
  try {
    step(fault.moment, group->rank() == fault.victim);
    step(fault.moment, false);  // where only some ranks wait for the victim before
  } catch (const ls::CommError& thrown) {
    error = thrown.what();
  }
  model_faults::check_report(fault.signal, fault.victim, board, error);
}

void run_rank(const Fault& fault, const Group& group, Board& board) {
  const par::DeviceMesh mesh(group, {{"dp", kRanks / fault.tp}, {"tp", fault.tp}});
  FaultyNet net(fault.width);
  par::parallelize(net, mesh["tp"],
                   {.sequence_parallel = fault.sequence,
                    .plan = {{"tokens", par::VocabParallel{}},
                             {"mlp.up", par::ColwiseParallel{}},
                             {"mlp.down", par::RowwiseParallel{}}}});
  if (fault.stage > 0) {
    par::ShardedDataParallel run(net, mesh["dp"].group(), {.stage = fault.stage});
    take_steps(fault, group, run, net.mlp, board);
  } else {
    par::DistributedDataParallel run(net, mesh["dp"].group());
    take_steps(fault, group, run, net.mlp, board);
  }
}

void check_faults(const std::vector<Fault>& faults) { model_faults::check_faults(faults, run_rank); }

constexpr std::int64_t kLarge = 1024;  // activations of several segments

}  // namespace

TEST_CASE("a rank with slices that is killed in a step is named by the others") {
  for (const Moment moment : {Moment::kForward, Moment::kBackward, Moment::kNorm, Moment::kNextStep}) {
    const int victim = static_cast<int>(moment);
    check_faults({{SIGKILL, victim, moment},
                  {.signal = SIGKILL, .victim = victim, .moment = moment, .tp = 2},
                  {.signal = SIGKILL, .victim = victim, .moment = moment, .tp = 2, .stage = 3},
                  {.signal = SIGKILL, .victim = victim, .moment = moment, .sequence = true}});
    if (moment <= Moment::kBackward)
      check_faults({{.signal = SIGKILL, .victim = 3 - victim, .moment = moment, .width = kLarge}});
  }
}

TEST_CASE("a rank with slices that is stopped in a step is named by the others after the time-out") {
  std::vector<Fault> faults;
  for (const Moment moment : {Moment::kForward, Moment::kBackward, Moment::kNorm, Moment::kNextStep})
    faults.push_back({SIGSTOP, 3 - static_cast<int>(moment), moment});
  check_faults(faults);
  check_faults({{.signal = SIGSTOP, .victim = 3, .moment = Moment::kForward, .tp = 2},
                {.signal = SIGSTOP, .victim = 1, .moment = Moment::kBackward, .tp = 2},
                {.signal = SIGSTOP, .victim = 2, .moment = Moment::kForward, .tp = 2, .stage = 3}});
}
