// GPU benchmarks: training steps, one by one and as a CUDA graph, products, attention, passes over memory. Times are
// medians over CUDA events. Errors compare a part of the result with f64 on the CPU, relative to its largest number.
// peers/torch_gpu.py prints PyTorch's figures for the same rows.
//   bench_gpu              all rows; BENCH_FILTER=mlp those with mlp in their name
//   bench_gpu --quick      all rows once, with tiny sizes: a test, not a measurement
//   bench_gpu --first-use  exits after the first result of the GPU: its caller takes the time
// Without a GPU it reports that and exits with 77.
#include <lockstep/lockstep.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/tensor/memory/accelerator_internal.h"
#include "support/gpt.h"  // of the samples
#include "support/timing.h"

namespace ls = lockstep;
namespace nn = ls::nn;

namespace {

const ls::Device kGpu = "cuda:0";
const ls::TensorOptions kOnGpu = {.device = kGpu};

// The size of a run.
struct Scale {
  int samples = 21, warm_up = 20;
  bool once = false;  // one call per sample
  std::vector<std::int64_t> products = {4096, 8192};
  std::int64_t count = std::int64_t{1} << 28, rows = 16384, columns = 4096, pictures = 256;
  // nanoGPT's larger configuration for characters, and attention of 4 x 8 heads of 64 numbers.
  std::int64_t texts = 64, layers = 6, heads = 6, width = 384, context = 256, attended = 2048;
};
const Scale kQuick{.samples = 3,
                   .warm_up = 1,
                   .once = true,
                   .products = {40, 80},
                   .count = 1 << 14,
                   .rows = 64,
                   .columns = 96,
                   .pictures = 4,
                   .texts = 2,
                   .layers = 1,
                   .heads = 2,
                   .width = 16,
                   .context = 8,
                   .attended = 70};

// Bytes and operations of one call, for the rates.
struct Amount {
  double bytes = 0;
  double operations = 0;
};

// The result of a row, or a part of it, and the same computed in f64 on the CPU, for the error.
struct Compared {
  ls::Tensor have, want;
};

double relative_error(const Compared& c) {
  const ls::Tensor have = c.have.to("cpu").to(ls::kFloat64), want = c.want.to("cpu").to(ls::kFloat64);
  return (ls::abs(have - want).max() / ls::abs(want).max()).item<double>();
}

class Bench {
 public:
  explicit Bench(const Scale& scale) : scale_(scale) {}
  void run() const {
    measure_steps();
    measure_gpt();
    measure_attention();
    measure_products();
    measure_memory();
    measure_rows();
  }

 private:
  // The median over samples of `calls` calls each.
  template <class Work>
  void measure(const std::string& name, int calls, const Amount& amount, Work&& work,
               const std::function<Compared()>& compare = {}) const {
    if (!bench::wanted(name)) return;
    const ls::Device device = kGpu;
    ls::Accelerator& gpu = ls::accelerator(device);
    const auto run = [&](int count) {
      const auto start = gpu.record_event(device.index());
      for (int i = 0; i < count; ++i) work();
      return gpu.record_event(device.index())->seconds_since(*start) / count;
    };
    run(scale_.warm_up);
    std::vector<double> samples;
    for (int i = 0; i < scale_.samples; ++i) samples.push_back(run(scale_.once ? 1 : calls));
    std::sort(samples.begin(), samples.end());
    const double seconds = samples[samples.size() / 2];
    std::printf("{\"name\": \"%s\", \"seconds\": %.4e, \"gb_per_s\": %.1f, \"tflop_per_s\": %.2f", name.c_str(),
                seconds, amount.bytes / seconds * 1e-9, amount.operations / seconds * 1e-12);
    if (compare) std::printf(", \"error\": %.1e", relative_error(compare()));
    std::printf("}\n");
    std::fflush(stdout);
  }

  template <class Criterion>
  void measure_step(const std::string& name, nn::Module& model, const Criterion& criterion, const ls::Tensor& x,
                    const ls::Tensor& y) const;
  void measure_steps() const;
  void measure_gpt() const;
  void measure_attention() const;
  void measure_products() const;
  void measure_memory() const;
  void measure_rows() const;

  Scale scale_;
};

// A training step, run from the host and replayed.
template <class Criterion>
void Bench::measure_step(const std::string& name, nn::Module& model, const Criterion& criterion, const ls::Tensor& x,
                         const ls::Tensor& y) const {
  model.to(kGpu);
  ls::optim::SGD optimizer(model.parameters(), {.lr = 0.01});
  const auto step = [&] {
    const ls::Tensor loss = criterion(model(x), y);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  };
  measure(name + "_eager", 100, {}, step);
  if (!bench::wanted(name + "_graph")) return;
  ls::CudaGraph graph(kGpu);
  graph.capture([&] {
    optimizer.zero_grad();
    criterion(model(x), y).backward();
    optimizer.step();
  });
  measure(name + "_graph", 100, {}, [&] { graph.replay(); });
}

// The network of samples/fashion_mnist_cnn.cpp.
struct Cnn : nn::Module {
  nn::Sequential& body =
      add<nn::Sequential>("body", nn::Conv2d(1, 16, 3, {.padding = 1, .bias = false}), nn::BatchNorm2d(16), nn::ReLU(),
                          nn::MaxPool2d(2), nn::Conv2d(16, 32, 3, {.padding = 1, .bias = false}), nn::BatchNorm2d(32),
                          nn::ReLU(), nn::MaxPool2d(2), nn::Flatten(), nn::Linear(32 * 7 * 7, 10));
  ls::Tensor forward(const ls::Tensor& x) const override { return body(x); }
};

void Bench::measure_steps() const {
  nn::Sequential logistic(nn::Linear(10, 1), nn::Sigmoid());
  measure_step("logreg_step_10", logistic, nn::BCELoss(), ls::randn({10, 10}, kOnGpu),
               (ls::rand({10, 1}, kOnGpu) > 0.5).to(ls::kFloat32));
  nn::Sequential mlp(nn::Linear(784, 512), nn::ReLU(), nn::Linear(512, 256), nn::ReLU(), nn::Linear(256, 10));
  measure_step("mlp_step_128", mlp, nn::CrossEntropyLoss(), ls::randn({128, 784}, kOnGpu),
               ls::randint(0, 10, {128}, kOnGpu));
  Cnn cnn;
  measure_step("cnn_step_256", cnn, nn::CrossEntropyLoss(), ls::randn({scale_.pictures, 1, 28, 28}, kOnGpu),
               ls::randint(0, 10, {scale_.pictures}, kOnGpu));
}

// A training step of samples/char_gpt.cpp, with products in f32 and in bf16.
void Bench::measure_gpt() const {
  constexpr std::int64_t kVocabulary = 65;
  samples::Gpt model(
      kVocabulary, {.layers = scale_.layers, .heads = scale_.heads, .width = scale_.width, .context = scale_.context});
  model.to(kGpu);
  ls::optim::AdamW optimizer(samples::groups_of(model), {.lr = 1e-3, .beta2 = 0.99, .weight_decay = 0.1});
  const ls::Shape shape = {scale_.texts, scale_.context};
  const ls::Tensor x = ls::randint(kVocabulary, shape, kOnGpu), y = ls::randint(kVocabulary, shape, kOnGpu);
  for (const bool narrow : {false, true}) {
    measure(narrow ? "gpt_step_bf16" : "gpt_step_f32", 5, {}, [&] {
      optimizer.zero_grad();
      const ls::AutocastGuard autocast(ls::kBFloat16, narrow);
      samples::next_character_loss(model(x), y).backward();
      nn::clip_grad_norm_(model.parameters(), 1.0);
      optimizer.step();
    });
  }
}

// Causal attention and its gradients.
void Bench::measure_attention() const {
  const double n = static_cast<double>(scale_.attended), pairs = 4 * 8 * n * n / 2;
  for (const ls::DType dtype : {ls::kFloat32, ls::kBFloat16}) {
    const auto heads = [&] { return ls::randn({4, 8, scale_.attended, 64}, kOnGpu).to(dtype).requires_grad_(); };
    const ls::Tensor q = heads(), k = heads(), v = heads(), grad = heads().detach();
    const auto attend = [&] { return ls::scaled_dot_product_attention(q, k, v, {.is_causal = true}); };
    const std::string name = dtype == ls::kFloat32 ? "attention_f32" : "attention_bf16";
    const auto wide = [](const ls::Tensor& t) { return t.detach().narrow(0, 0, 1).to("cpu").to(ls::kFloat64); };
    measure(
        name, 5, {.operations = 4 * 64 * pairs},
        [&] {
          const ls::NoGradGuard no_grad;
          attend();
        },
        [&]() -> Compared {
          return {attend().detach().narrow(0, 0, 1),
                  ls::scaled_dot_product_attention(wide(q), wide(k), wide(v), {.is_causal = true})};
        });
    measure(name + "_with_gradients", 5, {.operations = 14 * 64 * pairs}, [&] {
      ls::autograd::grad({attend()}, {q, k, v}, {.grad_outputs = {grad}});
    });
  }
}

void Bench::measure_products() const {
  constexpr std::int64_t kCompared = 8;  // rows
  for (const std::int64_t n : scale_.products) {
    const std::string name = "matmul_" + std::to_string(n);
    const Amount amount{.operations = 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n)};
    const ls::Tensor a = ls::randn({n, n}, kOnGpu), b = ls::randn({n, n}, kOnGpu);
    const auto product = [&](const std::string& kind, int calls, const ls::Tensor& a, const ls::Tensor& b) {
      measure(
          name + kind, calls, amount, [&] { ls::matmul(a, b); },
          [&]() -> Compared {
            const auto wide = [](const ls::Tensor& x) { return x.to("cpu").to(ls::kFloat64); };
            return {ls::matmul(a, b).narrow(0, 0, kCompared), ls::matmul(wide(a.narrow(0, 0, kCompared)), wide(b))};
          });
    };
    product("_f32", 3, a, b);
    ls::allow_tf32(true);
    product("_tf32", 10, a, b);
    ls::allow_tf32(false);
    product("_bf16", 10, a.to(ls::kBFloat16), b.to(ls::kBFloat16));
  }
}

void Bench::measure_memory() const {
  const double pass = 4.0 * static_cast<double>(scale_.count);  // bytes, one way
  const std::int64_t compared = std::min<std::int64_t>(scale_.count, 1 << 20);
  const ls::Tensor x = ls::randn({scale_.count}, kOnGpu), y = ls::randn({scale_.count}, kOnGpu);
  // Compares the first elements with the results of `f` in f64.
  const auto pointwise = [&](const std::string& name, double passes, const auto& f) {
    measure(
        name, 10, {.bytes = passes * pass}, [&] { f(x, y); },
        [&]() -> Compared {
          const auto part = [&](const ls::Tensor& t) { return t.narrow(0, 0, compared); };
          const auto wide = [&](const ls::Tensor& t) { return part(t).to("cpu").to(ls::kFloat64); };
          return {part(f(x, y)), f(wide(x), wide(y))};
        });
  };
  measure("copy_256m", 10, {.bytes = 2 * pass}, [&] { y.copy_(x); });
  pointwise("add_256m", 3, [](const ls::Tensor& x, const ls::Tensor& y) { return x + y; });
  pointwise("relu_256m", 2, [](const ls::Tensor& x, const ls::Tensor&) { return ls::relu(x); });
  pointwise("exp_256m", 2, [](const ls::Tensor& x, const ls::Tensor&) { return ls::exp(x); });
  pointwise("gelu_256m", 2, [](const ls::Tensor& x, const ls::Tensor&) { return ls::gelu(x); });
  measure("sum_256m", 10, {.bytes = pass}, [&] { ls::sum(x); });
  const ls::Tensor leaf = x.detach().requires_grad_(), out = ls::gelu(leaf);
  measure("gelu_backward_256m", 10, {.bytes = 3 * pass},
          [&] { ls::autograd::grad({out}, {leaf}, {.grad_outputs = {y}, .retain_graph = true}); });
}

void Bench::measure_rows() const {
  constexpr std::int64_t kCompared = 64;  // rows
  const std::int64_t columns = scale_.columns;
  const double pass = 4.0 * static_cast<double>(scale_.rows * columns);
  const ls::Tensor x = ls::randn({scale_.rows, columns}, kOnGpu);
  const ls::Tensor weight = ls::rand({columns}, kOnGpu), bias = ls::rand({columns}, kOnGpu);
  const auto of_rows = [&](const std::string& name, double passes, const auto& f) {
    measure(
        name, 20, {.bytes = passes * pass}, [&] { f(x, weight, bias); },
        [&]() -> Compared {
          const auto wide = [](const ls::Tensor& t) { return t.to("cpu").to(ls::kFloat64); };
          return {f(x, weight, bias).narrow(0, 0, kCompared),
                  f(wide(x.narrow(0, 0, kCompared)), wide(weight), wide(bias))};
        });
  };
  using T = const ls::Tensor&;
  of_rows("sum_rows", 1, [](T x, T, T) { return ls::sum(x, {1}); });
  measure(
      "sum_columns", 20, {.bytes = pass}, [&] { ls::sum(x, {0}); },
      [&]() -> Compared {
        return {ls::sum(x, {0}), ls::sum(x.to("cpu").to(ls::kFloat64), {0})};
      });
  of_rows("softmax_rows", 2, [](T x, T, T) { return ls::softmax(x, 1); });
  of_rows("layer_norm_rows", 2, [&](T x, T weight, T bias) { return ls::layer_norm(x, {columns}, weight, bias); });
}

}  // namespace

int main(int argc, char** argv) {
  if (ls::device_count(ls::DeviceType::kCuda) == 0) {
    std::printf("skipped: no CUDA device here, or no CUDA in this build\n");
    return 77;
  }
  const std::string argument = argc > 1 ? argv[1] : "";
  if (argument == "--first-use") return ls::ones({1}, kOnGpu).item<float>() == 1 ? 0 : 1;
  if (argument != "" && argument != "--quick") {
    std::fprintf(stderr, "bench_gpu: unknown argument '%s', expected --quick or --first-use\n", argv[1]);
    return 2;
  }
  ls::manual_seed(0);
  Bench(argument == "--quick" ? kQuick : Scale{}).run();
}
