// The cost of many ranks on one host: forming a group, and a training step of DistributedDataParallel with one
// Linear(64, 64), whose gradients are one all-reduce of 16,640 bytes.
//   bench_many_ranks --backend gloo [--ranks 2,8,32,64] [--steps 20]      (or shm)
//   mpirun --oversubscribe -n 64 bench_many_ranks --backend mpi [--steps 20]
// The goals with 64 ranks on two cores: gloo forms in at most 2 s, and a step of gloo or mpi takes at most 60 ms.
#include <lockstep/lockstep.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "support/arguments.h"
#include "support/ranks.h"

namespace {

namespace ls = lockstep;
namespace par = lockstep::parallel;

// The greatest of all ranks' numbers.
double greatest(const bench::Group& group, double own) {
  const ls::Tensor t = ls::full({1}, own, {.dtype = ls::kFloat64});
  group->all_reduce(t, par::ReduceOp::kMax)->wait();
  return t.item<double>();
}

// The median time of a step, and of a barrier.
void time_steps(const bench::Group& group, double formed, int steps) {
  ls::manual_seed(0);
  ls::nn::Linear model(64, 64);
  par::DistributedDataParallel ddp(model, group);
  ls::optim::SGD sgd(model.parameters(), {.lr = 0.01});
  const ls::Tensor x = ls::randn({8, 64}), y = ls::randn({8, 64});
  std::vector<double> step_seconds, barrier_seconds;
  for (int i = 0; i < steps; ++i) {
    double start = bench::seconds_now();
    group->barrier();
    barrier_seconds.push_back(bench::seconds_now() - start);
    start = bench::seconds_now();
    sgd.zero_grad();
    ddp.backward(x, y, [&](const ls::Tensor& a, const ls::Tensor& b) { return ls::mse_loss(model(a), b); });
    sgd.step();
    step_seconds.push_back(bench::seconds_now() - start);
  }
  const double slowest = greatest(group, formed);
  if (group->rank() != 0) return;
  std::printf(
      "{\"name\": \"many_ranks\", \"backend\": \"%s\", \"ranks\": %d, \"form_ms\": %.1f, \"step_ms\": %.3f, "
      "\"barrier_ms\": %.3f}\n",
      group->backend().c_str(), group->size(), 1e3 * slowest, 1e3 * bench::median(step_seconds),
      1e3 * bench::median(barrier_seconds));
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments arguments(argc, argv);
  const std::string backend = arguments.get("backend", "gloo");
  const int steps = std::stoi(arguments.get("steps", "20"));
  const double start = bench::seconds_now();
  if (backend == "mpi") {
    ls::set_num_threads(1);
    const bench::Group group = par::init_process_group({.backend = backend, .init_method = "mpi://"});
    time_steps(group, bench::seconds_now() - start, steps);
    return 0;
  }
  std::istringstream list(arguments.get("ranks", "2,8,32,64"));
  for (std::string ranks; std::getline(list, ranks, ',');) {
    const double begin = bench::seconds_now();
    bench::run_group(
        std::stoi(ranks),
        [&](const bench::Group& group, bench::Shared&) { time_steps(group, bench::seconds_now() - begin, steps); },
        {.backend = backend, .timeout = std::chrono::minutes(5)});
  }
}
