// One rank of a small training for the tests of networks: network_job backend timeout_ms steps [stop_file]
// It meets the others by the environment (env://, or what INIT_METHOD says), says "arrived" and, after each step,
// "step 7", so that the test knows when to disturb it. It ends after `steps` steps, or after the step at which rank 0
// sees the stop file. Last comes
//   done 40 steps, 0123456789abcdef, same bits
//   failed 40 steps, 0123456789abcdef, same bits, after 3021 ms: all_reduce of ...: rank 1 has not arrived
// where the bits are compared with as many steps of GradientAccumulation in this process; the time runs from the last
// sign of life.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "lockstep/lockstep.h"

namespace ls = lockstep;
namespace par = lockstep::parallel;

namespace {

constexpr std::int64_t kRows = 4, kInputs = 64;  // rows per rank

struct Net : ls::nn::Module {
  ls::nn::Linear& fc1 = add<ls::nn::Linear>("fc1", kInputs, 128);
  ls::nn::Linear& fc2 = add<ls::nn::Linear>("fc2", 128, 1);
  ls::Tensor forward(const ls::Tensor& x) const override { return ls::sigmoid(fc2(ls::relu(fc1(x)))); }
};

// A model that every process begins with the same, and its steps on micro-batches `first` to `last` of `size`.
struct Training {
  explicit Training(int size) : size(size) { ls::manual_seed(0); }

  template <class Mode>
  void step(Mode& mode, int number, int first, int last) {
    const ls::Tensor x = ls::sin(ls::arange(0, size * kRows * kInputs, 1, {.dtype = ls::kFloat32}) * (number + 1.0));
    const ls::Tensor rows = x.view({size * kRows, kInputs}).narrow(0, first * kRows, (last - first) * kRows);
    optimizer.zero_grad();
    mode.backward(rows, ls::sigmoid(rows.sum(1, true)),
                  [&](const ls::Tensor& in, const ls::Tensor& out) { return criterion(model(in), out); });
    optimizer.step();
  }

  int size;
  Net model;
  ls::nn::MSELoss criterion;
  ls::optim::SGD optimizer{model.parameters(), {.lr = 0.1, .momentum = 0.9}};
};

std::uint64_t undisturbed(int size, int steps) {
  Training training(size);
  par::GradientAccumulation accumulation(training.model, {.micro_batches = size});
  for (int i = 0; i < steps; ++i) training.step(accumulation, i, 0, size);
  return ls::nn::parameter_hash(training.model);
}

using Clock = std::chrono::steady_clock;
Clock::time_point last_sign = Clock::now();

void say(const std::string& line) {
  last_sign = Clock::now();
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

std::string result(const Training& training, int steps) {
  char text[120];
  const std::uint64_t have = ls::nn::parameter_hash(training.model);
  std::snprintf(text, sizeof(text), "%d steps, %016llx, %s", steps, static_cast<unsigned long long>(have),
                have == undisturbed(training.size, steps) ? "same bits" : "OTHER BITS");
  return text;
}

void train(Training& training, const par::InitOptions& options, int most_steps, const char* stop_file, int& steps) {
  const auto group = par::init_process_group(options);
  par::DistributedDataParallel ddp(training.model, group);
  say("arrived");
  const int rank = group->rank();
  while (steps < most_steps && !ddp.stop_requested()) {
    if (rank == 0 && stop_file && ::access(stop_file, F_OK) == 0) ddp.request_stop();
    training.step(ddp, steps, rank, rank + 1);
    say("step " + std::to_string(++steps));
  }
  group->barrier();  // nobody leaves while another still needs an answer
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const std::chrono::milliseconds timeout(std::atoi(argv[2]));
  const char* const size = std::getenv("WORLD_SIZE");
  Training training(size ? std::atoi(size) : 1);
  int steps = 0;
  try {
    par::InitOptions options{.backend = argv[1], .timeout = timeout, .reduction = par::Reduction::kCanonical};
    if (const char* const method = std::getenv("INIT_METHOD")) {
      options.init_method = method;
      options.world_size = training.size;
      options.rank = std::atoi(std::getenv("RANK"));
    }
    train(training, options, std::atoi(argv[3]), argc > 4 ? argv[4] : nullptr, steps);
  } catch (const std::exception& error) {
    const auto after = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - last_sign);
    say("failed " + result(training, steps) + ", after " + std::to_string(after.count()) + " ms: " + error.what());
    return 3;
  }
  say("done " + result(training, steps));
  return 0;
}
