// The cost of data parallelism: DistributedDataParallel compared with the same number of processes without a group,
// DataParallel compared with DistributedDataParallel, and memory. Two ranks on two cores.
//
// With --first-step the program is one rank of a job that a launcher started: it trains one step of the MLP and prints
// the time of CLOCK_MONOTONIC at its end.
#include <string_view>

#include "support/ranks.h"
#include "support/timing.h"

namespace ls = lockstep;

namespace {

using bench::Group;
using bench::Shared;

struct Logistic : ls::nn::Module {
  ls::nn::Linear& fc = add<ls::nn::Linear>("fc", 10, 1);
  ls::Tensor forward(const ls::Tensor& x) const override { return ls::sigmoid(fc(x)); }
};

struct Mlp : ls::nn::Module {
  ls::nn::Linear& fc1 = add<ls::nn::Linear>("fc1", 784, 512);
  ls::nn::Linear& fc2 = add<ls::nn::Linear>("fc2", 512, 256);
  ls::nn::Linear& fc3 = add<ls::nn::Linear>("fc3", 256, 10);
  ls::Tensor forward(const ls::Tensor& x) const override { return fc3(ls::relu(fc2(ls::relu(fc1(x))))); }
};

// The median of batches of steps, by the wall clock, because waiting must be measured.
template <class Step>
double time_steps(int batch, int batches, Step step) {
  for (int i = 0; i < 10 * batch; ++i) step();
  std::vector<double> samples;
  for (int b = 0; b < batches; ++b) {
    const double start = bench::seconds_now();
    for (int i = 0; i < batch; ++i) step();
    samples.push_back((bench::seconds_now() - start) / batch);
  }
  return bench::median(std::move(samples));
}

double logistic_step(const Group& group) {
  Logistic model;
  ls::parallel::DistributedDataParallel ddp(model, group);
  ls::optim::SGD optimizer(model.parameters(), {.lr = 0.01});
  ls::nn::BCELoss criterion;
  const ls::Tensor x = ls::randn({10, 10}), y = ls::randint(0, 2, {10, 1}).to(ls::kFloat32);
  return time_steps(1000, 50, [&] {
    const ls::Tensor loss = criterion(ddp(x), y);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  });
}

// One step of the MLP on `rows` rows with the forward of `net`; after `loss.backward()` the gradients are complete.
template <class Net>
double mlp_step(Mlp& model, Net& net, std::int64_t rows) {
  ls::optim::SGD optimizer(model.parameters(), {.lr = 0.01});
  ls::nn::CrossEntropyLoss criterion;
  const ls::Tensor x = ls::randn({rows, 784}), y = ls::randint(0, 10, {rows});
  return time_steps(1, rows >= 512 ? 60 : 200, [&] {
    const ls::Tensor loss = criterion(net(x), y);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  });
}

double worst(const Shared* shared) { return shared->greatest(2); }

double plain_step(std::int64_t rows) {
  return worst(bench::run_ranks(2, [&](int rank, Shared& shared) {
    Mlp model;
    shared.meet(2);
    shared.results[rank][0] = mlp_step(model, model, rows);
  }));
}

double distributed_step(std::int64_t rows) {
  return worst(bench::run_group(2, [&](const Group& group, Shared& shared) {
    Mlp model;
    ls::parallel::DistributedDataParallel ddp(model, group);
    shared.results[group->rank()][0] = mlp_step(model, ddp, rows);
  }));
}

// 2 devices, `rows` rows each, loss and backward on the replicas.
double data_parallel_step(std::int64_t rows) {
  ls::set_num_threads(1);
  Mlp model;
  ls::parallel::DataParallel parallel(model, {"cpu:0", "cpu:1"});
  ls::optim::SGD optimizer(model.parameters(), {.lr = 0.01});
  ls::nn::CrossEntropyLoss criterion;
  const ls::Tensor x = ls::randn({2 * rows, 784}), y = ls::randint(0, 10, {2 * rows});
  return time_steps(1, 200, [&] {
    optimizer.zero_grad();
    parallel.backward(x, y, [&](const ls::Tensor& x, const ls::Tensor& y) { return criterion(model(x), y); });
    optimizer.step();
  });
}

// Kilobytes that this process holds for training: its tensors, and its part of shared memory. (The whole process is no
// measure: the memory of glibc and oneDNN differs by a megabyte between runs of one program.)
double kilobytes_held() {
  std::FILE* const file = std::fopen("/proc/self/smaps_rollup", "r");
  char line[256];
  long shared = 0;
  while (file && std::fgets(line, sizeof(line), file)) {
    if (std::sscanf(line, "Pss_Shmem: %ld kB", &shared) == 1) break;
  }
  if (file) std::fclose(file);
  return static_cast<double>(shared) + static_cast<double>(ls::allocator_stats().allocated_bytes) / 1024;
}

// Kilobytes per rank for training, with or without DistributedDataParallel: the mean over two ranks.
double memory(bool distributed) {
  const auto train = [](Mlp& model, auto& net) {
    ls::optim::SGD optimizer(model.parameters(), {.lr = 0.01});
    ls::nn::CrossEntropyLoss criterion;
    const ls::Tensor x = ls::randn({128, 784}), y = ls::randint(0, 10, {128});
    for (int i = 0; i < 20; ++i) {
      const ls::Tensor loss = criterion(net(x), y);
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
    }
  };
  const Shared* const shared = distributed ? bench::run_group(2,
                                                              [&](const Group& group, Shared& shared) {
                                                                Mlp model;
                                                                ls::parallel::DistributedDataParallel ddp(model, group);
                                                                train(model, ddp);
                                                                shared.meet(2);
                                                                shared.results[group->rank()][0] = kilobytes_held();
                                                                shared.meet(2);
                                                              })
                                           : bench::run_ranks(2, [&](int rank, Shared& shared) {
                                               Mlp model;
                                               train(model, model);
                                               shared.meet(2);
                                               shared.results[rank][0] = kilobytes_held();
                                               shared.meet(2);
                                             });
  return (shared->results[0][0] + shared->results[1][0]) / 2;
}

// Two ranks of one launch write to one pipe, so each writes its line in one call.
void print_first_step() {
  const Group group = ls::parallel::init_process_group();
  Mlp model;
  ls::parallel::DistributedDataParallel ddp(model, group);
  ls::optim::SGD optimizer(model.parameters(), {.lr = 0.01});
  ls::nn::CrossEntropyLoss criterion;
  const ls::Tensor loss = criterion(ddp(ls::randn({32, 784})), ls::randint(0, 10, {32}));
  loss.backward();
  optimizer.step();
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  std::printf("{\"name\": \"first_step\", \"monotonic\": %lld.%09ld}\n", static_cast<long long>(now.tv_sec),
              now.tv_nsec);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && argv[1] == std::string_view("--first-step")) {
    print_first_step();
    return 0;
  }
  if (bench::wanted("ddp_logreg_step"))
    bench::print_row("ddp_logreg_step", bench::run_group(2, [](const Group& group, Shared& shared) {
                                          shared.results[group->rank()][0] = logistic_step(group);
                                        })->results[0][0]);
  for (const std::int64_t rows : {32, 128, 512}) {
    const std::string name = "mlp_" + std::to_string(rows);
    if (!bench::wanted("ddp_" + name)) continue;
    bench::print_row("plain_" + name, plain_step(rows));
    bench::print_row("ddp_" + name, distributed_step(rows));
  }
  if (bench::wanted("dp_mlp_128")) bench::print_row("dp_mlp_128", data_parallel_step(128));
  if (bench::wanted("ddp_memory"))
    std::printf("{\"name\": \"ddp_memory\", \"kilobytes\": %.0f}\n", memory(true) - memory(false));
}
