// A training step of a tagger of two recurrent directions: batch 32, 40 steps, 64 features, width 128, 20 classes.
#include <lockstep/lockstep.h>

#include <string>

#include "support/timing.h"

namespace ls = lockstep;

namespace {

constexpr std::int64_t kBatch = 32, kTime = 40, kIn = 64, kHidden = 128, kClasses = 20;

template <class Layer>
struct Tagger : ls::nn::Module {
  Layer& layer =
      add<Layer>("layer", kIn, kHidden, ls::nn::RecurrentOptions{.batch_first = true, .bidirectional = true});
  ls::nn::Linear& head = add<ls::nn::Linear>("head", 2 * kHidden, kClasses);
  ls::Tensor forward(const ls::Tensor& x) const override { return head(layer(x)).flatten(0, 1); }
};

template <class Layer>
void measure(const std::string& name) {
  ls::manual_seed(0);
  const Tagger<Layer> model;
  const ls::nn::CrossEntropyLoss criterion;
  ls::optim::SGD optimizer(model.parameters(), {.lr = 0.01});
  const ls::Tensor x = ls::randn({kBatch, kTime, kIn}), y = ls::randint(0, kClasses, {kBatch * kTime});
  bench::measure(name, [&] {
    optimizer.zero_grad();
    criterion(model(x), y).backward();
    optimizer.step();
  });
}

}  // namespace

int main() {
  bench::start_a_thread_once();
  ls::set_num_threads(bench::threads());
  measure<ls::nn::LSTM>("lstm_step");
  measure<ls::nn::GRU>("gru_step");
}
