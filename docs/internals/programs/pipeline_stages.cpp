// A chain of eight MLPs in stages, by the schedule in a CSV file: the bits, what rank 0 sends, and a trace of the steps.
#include <lockstep/lockstep.h>

#include <cstdio>

namespace nn = lockstep::nn;
namespace par = lockstep::parallel;
constexpr std::int64_t kWidth = 256;

struct Mlp : nn::Module {
  nn::Linear& up = add<nn::Linear>("up", kWidth, 4 * kWidth);
  nn::Linear& down = add<nn::Linear>("down", 4 * kWidth, kWidth);
  lockstep::Tensor forward(const lockstep::Tensor& x) const override { return x + down(lockstep::gelu(up(x))); }
};

int main(int, char** argv) {  // a file with a schedule
  const auto group = par::init_process_group();
  lockstep::manual_seed(0);
  nn::Sequential model{Mlp(), Mlp(), Mlp(), Mlp(), Mlp(), Mlp(), Mlp(), Mlp()};
  const par::DeviceMesh mesh(group, {{"pp", -1}});
  const auto table = par::ScheduleTable::load(argv[1]);
  par::Pipeline run(model, mesh["pp"], {.micro_batches_per_rank = table.micro_batches(), .table = table});
  lockstep::optim::AdamW optimizer(run.parameters(), {.lr = 1e-3});
  const auto x = lockstep::randn({1024, kWidth}), y = lockstep::randn({1024, kWidth});
  double loss = 0;
  for (int step = 0; step < 10; ++step, optimizer.step()) {
    if (step == 2) lockstep::start_trace();
    optimizer.zero_grad();
    loss = run.backward(x, y, [&](auto& x, auto& y) { return nn::mse_loss(model(x), y); }).item<double>();
  }
  const auto traces = par::gather_traces(*group, lockstep::stop_trace());
  if (group->rank() == 0) lockstep::write_chrome_trace("runs/pipeline.json", traces);
  const double sent = static_cast<double>(run.plan().boundary_bytes) * 1e-6;
  run.gathered([&] {  // all stages, for the hash
    if (group->rank() > 0) return;
    std::printf("loss %.4f   rank 0 sends %.2f MB   hash %016lx\n", loss, sent, nn::parameter_hash(model));
  });
}
