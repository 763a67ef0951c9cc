// Sharded training on two ranks, each on its own core: the stages of ShardedDataParallel and DistributedDataParallel,
// in turn, by the wall clock. The GPT of samples/char_gpt.cpp (width 512, four layers, 8 x 128 characters a rank; one
// unit a block) and the MLP of bench/distributed.cpp. A figure is the median over rounds of the slower rank's step.
//
// With --losses FOLDER it trains a GPT of width 128 for 20 steps in stage 3, and writes the initial weights, the data and
// the losses, for peers/torch_fsdp.py.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/gpt.h"  // of the samples
#include "support/gpt_shapes.h"
#include "support/losses.h"
#include "support/ranks.h"
#include "support/timing.h"

namespace ls = lockstep;
namespace par = lockstep::parallel;

namespace {

using bench::Group;
using bench::Shared;

constexpr const char* kModes[] = {"ddp", "stage_1", "stage_2", "stage_3"};
constexpr int kModeCount = 4;

struct Mlp : ls::nn::Module {
  ls::nn::Linear& fc1 = add<ls::nn::Linear>("fc1", 784, 512);
  ls::nn::Linear& fc2 = add<ls::nn::Linear>("fc2", 512, 256);
  ls::nn::Linear& fc3 = add<ls::nn::Linear>("fc3", 256, 10);
  ls::Tensor forward(const ls::Tensor& x) const override { return fc3(ls::relu(fc2(ls::relu(fc1(x))))); }
};

// One model in one mode.
template <class Model>
class Trainer {
 public:
  template <class Make>
  Trainer(const Make& make, const Group& group, int mode, std::vector<std::string> units) : model_(make()) {
    if (mode == 0)
      ddp_.emplace(*model_, group);
    else
      sharded_.emplace(*model_, group, par::ShardedDataParallelOptions{.stage = mode, .units = std::move(units)});
    optimizer_.emplace(mode == 0 ? ddp_->parameters() : sharded_->parameters(), ls::optim::AdamWOptions{.lr = 1e-3});
  }
  template <class Loss>
  void step(const ls::Tensor& x, const ls::Tensor& y, const Loss& loss) {
    const auto of_model = [&](const ls::Tensor& x, const ls::Tensor& y) { return loss((*model_)(x), y); };
    optimizer_->zero_grad();
    ddp_ ? ddp_->backward(x, y, of_model) : sharded_->backward(x, y, of_model);
    optimizer_->step();
  }

 private:
  std::unique_ptr<Model> model_;
  std::optional<par::DistributedDataParallel> ddp_;
  std::optional<par::ShardedDataParallel> sharded_;
  std::optional<ls::optim::AdamW> optimizer_;
};

// Steps in each mode in turn. results[rank][mode]: the median of a rank's step.
template <class Model, class Make, class Loss>
void compare(const Group& group, Shared& shared, const Make& make, const std::vector<std::string>& units,
             const ls::Tensor& x, const ls::Tensor& y, const Loss& loss, int steps, int rounds) {
  std::vector<std::unique_ptr<Trainer<Model>>> trainers;
  for (int mode = 0; mode < kModeCount; ++mode)
    trainers.push_back(std::make_unique<Trainer<Model>>(make, group, mode, units));
  std::vector<double> seconds[kModeCount];
  for (int round = -1; round < rounds; ++round) {  // the first one is not counted
    for (int mode = 0; mode < kModeCount; ++mode) {
      shared.meet(2);
      const double start = bench::seconds_now();
      for (int i = 0; i < steps; ++i) trainers[static_cast<std::size_t>(mode)]->step(x, y, loss);
      if (round >= 0) seconds[mode].push_back((bench::seconds_now() - start) / steps);
    }
  }
  for (int mode = 0; mode < kModeCount; ++mode)
    shared.results[group->rank()][mode] = bench::median(std::move(seconds[mode]));
}

void print(const std::string& model, const Shared* shared) {
  for (int mode = 0; mode < kModeCount; ++mode)
    bench::print_row(model + "_" + kModes[mode], std::max(shared->results[0][mode], shared->results[1][mode]));
}

void compare_gpt(const Group& group, Shared& shared) {
  ls::manual_seed(0);
  const ls::Tensor x = ls::randint(bench::kGptVocabulary, {8, 128}), y = ls::randint(bench::kGptVocabulary, {8, 128});
  const auto make = [] {
    return std::make_unique<samples::Gpt>(bench::kGptVocabulary,
                                          samples::GptOptions{.layers = 4, .heads = 8, .width = 512, .context = 128});
  };
  compare<samples::Gpt>(group, shared, make, {"blocks.*"}, x, y, samples::next_character_loss, 1, 11);
}

void compare_mlp(const Group& group, Shared& shared) {
  ls::manual_seed(0);
  const ls::Tensor x = ls::randn({128, 784}), y = ls::randint(0, 10, {128});
  compare<Mlp>(
      group, shared, [] { return std::make_unique<Mlp>(); }, {"fc1"}, x, y, ls::nn::CrossEntropyLoss(), 20, 21);
}

bench::ShortRun short_run(const Group& group) {
  ls::manual_seed(0);
  const ls::Tensor x = ls::randint(bench::kGptVocabulary, {16, 128}), y = ls::randint(bench::kGptVocabulary, {16, 128});
  samples::Gpt model(bench::kGptVocabulary, {.layers = 4, .heads = 8, .width = 128, .context = 128});
  bench::ShortRun result;
  for (const auto& [name, tensor] : model.state_dict()) result.start.insert("model." + name, tensor.clone());
  result.start.insert("x", x);
  result.start.insert("y", y);
  par::ShardedDataParallel run(model, group);
  ls::optim::AdamW optimizer(run.parameters(), {.lr = 1e-3});
  const std::int64_t first = 8 * group->rank();
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    const ls::Tensor loss = run.backward(
        x.narrow(0, first, 8), y.narrow(0, first, 8),
        [&](const ls::Tensor& x, const ls::Tensor& y) { return samples::next_character_loss(model(x), y); });
    optimizer.step();
    result.losses.push_back(loss.item<double>());
  }
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  if (bench::write_losses(argc, argv, short_run)) return 0;
  if (bench::wanted("sharded_gpt_512")) print("sharded_gpt_512", bench::run_group(2, compare_gpt));
  if (bench::wanted("sharded_mlp_128")) print("sharded_mlp_128", bench::run_group(2, compare_mlp));
}
