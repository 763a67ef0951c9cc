// The cost of a trace: an event while none is recorded and while one is, and a logistic-regression step in both cases.
#include <lockstep/lockstep.h>

#include "support/timing.h"

namespace ls = lockstep;

struct LogisticRegression : ls::nn::Module {
  ls::nn::Linear& fc = add<ls::nn::Linear>("fc", 30, 1);
  ls::Tensor forward(const ls::Tensor& x) const override { return ls::sigmoid(fc(x)); }
};

void measure_all(const std::string& suffix) {
  bench::measure("empty_loop", [] { asm volatile("" ::: "memory"); });
  bench::measure("trace_span_" + suffix, [] {
    const ls::TraceSpan span(ls::TraceKind::kUser, "span");
    asm volatile("" ::: "memory");
  });

  ls::manual_seed(0);
  LogisticRegression model;
  ls::nn::BCELoss criterion;
  ls::optim::SGD optimizer(model.parameters(), {.lr = 0.01});
  // The sample's step also draws a batch of 32 of 456 rows.
  auto set =
      std::make_shared<ls::data::TensorDataset>(ls::randn({456, 30}), ls::randint(0, 2, {456, 1}).to(ls::kFloat32));
  ls::data::DataLoader<> loader(set, {.batch_size = 32, .shuffle = true});
  const auto step = [&](const ls::Tensor& x, const ls::Tensor& y) {
    optimizer.zero_grad();
    ls::Tensor loss = criterion(model(x), y);
    loss.backward();
    optimizer.step();
  };
  bench::measure("logreg_epoch_" + suffix, [&] {
    for (const auto& [x, y] : loader) step(x, y);
  });
  const ls::Tensor x = ls::randn({32, 30}), y = ls::randint(0, 2, {32, 1}).to(ls::kFloat32);
  bench::measure("logreg_step_" + suffix, [&] { step(x, y); });
}

int main() {
  bench::start_a_thread_once();
  ls::set_num_threads(1);
  measure_all("off");
  ls::start_trace();
  measure_all("on");
  ls::stop_trace();
  ls::start_trace({.kernels = true});
  measure_all("on_with_kernels");
  ls::stop_trace();
}
