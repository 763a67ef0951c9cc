// What a GPU is asked for: small training steps, one by one and as a CUDA graph, products, passes over memory. Times are
// medians over CUDA events. PyTorch's figures: peers/torch_gpu.py, which prints the same rows.
//   bench_gpu              all rows; BENCH_FILTER=mlp those with mlp in their name
//   bench_gpu --first-use  ends when the first result of the GPU has come: its caller takes the time
// Without a GPU it says so and ends with 77.
#include <lockstep/lockstep.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "lockstep/tensor/accelerator_internal.h"
#include "support/timing.h"

namespace ls = lockstep;
namespace nn = ls::nn;

namespace {

const ls::TensorOptions kOnGpu = {.device = "cuda:0"};

// What one call moves or computes, for the rates.
struct Amount {
  double bytes = 0;
  double operations = 0;
};

// The median over 21 samples of `calls` calls each, after 20 calls to warm up.
template <class Work>
void measure(const std::string& name, int calls, const Amount& amount, Work&& work) {
  if (!bench::wanted(name)) return;
  const ls::Device device = kOnGpu.device;
  ls::Accelerator& gpu = ls::accelerator(device);
  const auto run = [&](int count) {
    const auto start = gpu.record_event(device.index());
    for (int i = 0; i < count; ++i) work();
    return gpu.record_event(device.index())->seconds_since(*start) / count;
  };
  run(20);
  std::vector<double> samples;
  for (int i = 0; i < 21; ++i) samples.push_back(run(calls));
  std::sort(samples.begin(), samples.end());
  const double seconds = samples[samples.size() / 2];
  std::printf("{\"name\": \"%s\", \"seconds\": %.4e, \"gb_per_s\": %.1f, \"tflop_per_s\": %.2f}\n", name.c_str(),
              seconds, amount.bytes / seconds * 1e-9, amount.operations / seconds * 1e-12);
  std::fflush(stdout);
}

// A training step, from the host and replayed.
template <class Criterion>
void measure_step(const std::string& name, nn::Module& model, const Criterion& criterion, const ls::Tensor& x,
                  const ls::Tensor& y) {
  model.to(kOnGpu.device);
  ls::optim::SGD optimizer(model.parameters(), {.lr = 0.01});
  const auto step = [&] {
    const ls::Tensor loss = criterion(model(x), y);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  };
  measure(name + "_eager", 100, {}, step);
  if (!bench::wanted(name + "_graph")) return;
  ls::CudaGraph graph(kOnGpu.device);
  graph.capture([&] {
    optimizer.zero_grad();
    criterion(model(x), y).backward();
    optimizer.step();
  });
  measure(name + "_graph", 100, {}, [&] { graph.replay(); });
}

void measure_steps() {
  nn::Sequential logistic(nn::Linear(10, 1), nn::Sigmoid());
  measure_step("logreg_step_10", logistic, nn::BCELoss(), ls::randn({10, 10}, kOnGpu),
               (ls::rand({10, 1}, kOnGpu) > 0.5).to(ls::kFloat32));
  nn::Sequential mlp(nn::Linear(784, 512), nn::ReLU(), nn::Linear(512, 256), nn::ReLU(), nn::Linear(256, 10));
  measure_step("mlp_step_128", mlp, nn::CrossEntropyLoss(), ls::randn({128, 784}, kOnGpu),
               ls::randint(0, 10, {128}, kOnGpu));
}

void measure_products() {
  for (const std::int64_t n : {4096, 8192}) {
    const std::string size = std::to_string(n);
    const Amount amount{.operations = 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n)};
    const ls::Tensor a = ls::randn({n, n}, kOnGpu), b = ls::randn({n, n}, kOnGpu);
    measure("matmul_" + size + "_f32", 3, amount, [&] { ls::matmul(a, b); });
    ls::allow_tf32(true);
    measure("matmul_" + size + "_tf32", 10, amount, [&] { ls::matmul(a, b); });
    ls::allow_tf32(false);
    const ls::Tensor c = a.to(ls::kBFloat16), d = b.to(ls::kBFloat16);
    measure("matmul_" + size + "_bf16", 10, amount, [&] { ls::matmul(c, d); });
  }
}

void measure_memory() {
  constexpr std::int64_t kCount = std::int64_t{1} << 28;
  constexpr double kPass = 4.0 * static_cast<double>(kCount);  // bytes, one way
  const ls::Tensor x = ls::randn({kCount}, kOnGpu), y = ls::randn({kCount}, kOnGpu);
  measure("copy_256m", 10, {.bytes = 2 * kPass}, [&] { y.copy_(x); });
  measure("relu_256m", 10, {.bytes = 2 * kPass}, [&] { ls::relu(x); });
  measure("gelu_256m", 10, {.bytes = 2 * kPass}, [&] { ls::gelu(x); });
  measure("add_256m", 10, {.bytes = 3 * kPass}, [&] { x + y; });
  measure("sum_256m", 10, {.bytes = kPass}, [&] { ls::sum(x); });
}

void measure_rows() {
  constexpr std::int64_t kRows = 16384, kColumns = 4096;
  constexpr double kPass = 4.0 * static_cast<double>(kRows * kColumns);
  const ls::Tensor x = ls::randn({kRows, kColumns}, kOnGpu);
  const ls::Tensor weight = ls::ones({kColumns}, kOnGpu), bias = ls::zeros({kColumns}, kOnGpu);
  measure("sum_rows", 20, {.bytes = kPass}, [&] { ls::sum(x, {1}); });
  measure("sum_columns", 20, {.bytes = kPass}, [&] { ls::sum(x, {0}); });
  measure("softmax_rows", 20, {.bytes = 2 * kPass}, [&] { ls::softmax(x, 1); });
  measure("layer_norm_rows", 20, {.bytes = 2 * kPass}, [&] { ls::layer_norm(x, {kColumns}, weight, bias); });
}

}  // namespace

int main(int argc, char** argv) {
  if (ls::device_count(ls::DeviceType::kCuda) == 0) {
    std::printf("skipped: no CUDA device here, or no CUDA in this build\n");
    return 77;
  }
  if (argc > 1 && std::string(argv[1]) == "--first-use") return ls::ones({1}, kOnGpu).item<float>() == 1 ? 0 : 1;
  ls::manual_seed(0);
  measure_steps();
  measure_products();
  measure_memory();
  measure_rows();
}
