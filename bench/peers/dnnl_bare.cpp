// The bare loop: a training step of the MLP 784-512-256-10 (ReLU, softmax cross entropy, SGD) as oneDNN products and
// hand-written loops, without a framework. It is the bound for any framework.
//
// FLOPs: forward 2*B*in*out per layer; the weight gradient the same for all three layers; the input gradient for
// layers 2 and 3 only. Everything is f32, row-major; weights are (out, in) as in PyTorch. One OpenMP thread.
#include <dnnl.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "support/timing.h"

extern "C" void omp_set_num_threads(int);  // clang has no <omp.h> without libomp; oneDNN brings libgomp

namespace {

// Uninitialised memory aligned to 64 bytes, which kernels read fastest.
class Buffer {
 public:
  explicit Buffer(std::int64_t size) : size_(size), data_(new (std::align_val_t{64}) float[size]) {}
  ~Buffer() { ::operator delete[](data_, std::align_val_t{64}); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  float* data() const { return data_; }
  std::int64_t size() const { return size_; }

 private:
  std::int64_t size_;
  float* data_;
};

// c (m, n) = a (m, k) b (k, n) or their transposes, all row-major
void product(char trans_a, char trans_b, std::int64_t m, std::int64_t n, std::int64_t k, const float* a, const float* b,
             float* c) {
  const std::int64_t lda = trans_a == 'N' ? k : m, ldb = trans_b == 'N' ? n : k;
  dnnl_sgemm(trans_a, trans_b, m, n, k, 1.0F, a, lda, b, ldb, 0.0F, c, n);
}

struct Layer {
  std::int64_t in, out;
  Buffer weight, bias, grad_weight, grad_bias;  // weight (out, in)
  Buffer y, grad_y;                             // (batch, out)

  Layer(std::int64_t inputs, std::int64_t outputs, std::int64_t batch, std::mt19937& random)
      : in(inputs), out(outputs), weight(in * out), bias(out), grad_weight(in * out), grad_bias(out), y(batch * out),
        grad_y(batch * out) {
    const float bound = 1.0F / std::sqrt(static_cast<float>(in));
    std::uniform_real_distribution<float> uniform(-bound, bound);
    for (const Buffer* parameter : {&weight, &bias}) {
      std::generate_n(parameter->data(), parameter->size(), [&] { return uniform(random); });
    }
  }
};

void add_bias(Layer& layer, std::int64_t batch, bool relu) {
  const float* __restrict bias = layer.bias.data();
  for (std::int64_t row = 0; row < batch; ++row) {
    float* __restrict y = layer.y.data() + row * layer.out;
    if (relu) {
      for (std::int64_t i = 0; i < layer.out; ++i) y[i] = std::max(y[i] + bias[i], 0.0F);
    } else {
      for (std::int64_t i = 0; i < layer.out; ++i) y[i] += bias[i];
    }
  }
}

// Returns the mean loss and writes its gradient to layer.grad_y.
float softmax_cross_entropy(Layer& layer, const std::vector<int>& labels) {
  const auto batch = static_cast<std::int64_t>(labels.size());
  float loss = 0;
  for (std::int64_t row = 0; row < batch; ++row) {
    const float* x = layer.y.data() + row * layer.out;
    float* grad = layer.grad_y.data() + row * layer.out;
    const float largest = *std::max_element(x, x + layer.out);
    float total = 0;
    for (std::int64_t i = 0; i < layer.out; ++i) total += grad[i] = std::exp(x[i] - largest);
    loss += std::log(total) + largest - x[labels[row]];
    for (std::int64_t i = 0; i < layer.out; ++i) grad[i] /= total * static_cast<float>(batch);
    grad[labels[row]] -= 1.0F / static_cast<float>(batch);
  }
  return loss / static_cast<float>(batch);
}

void relu_backward(Layer& layer) {
  const float* __restrict y = layer.y.data();
  float* __restrict grad = layer.grad_y.data();
  for (std::int64_t i = 0; i < layer.y.size(); ++i) grad[i] = y[i] > 0 ? grad[i] : 0.0F;
}

void sum_rows(const Layer& layer, std::int64_t batch) {
  float* __restrict sums = layer.grad_bias.data();
  std::fill_n(sums, layer.out, 0.0F);
  for (std::int64_t row = 0; row < batch; ++row) {
    const float* __restrict grad = layer.grad_y.data() + row * layer.out;
    for (std::int64_t i = 0; i < layer.out; ++i) sums[i] += grad[i];
  }
}

void descend(const Buffer& parameter, const Buffer& gradient, float lr) {
  float* __restrict p = parameter.data();
  const float* __restrict g = gradient.data();
  for (std::int64_t i = 0; i < parameter.size(); ++i) p[i] -= lr * g[i];
}

struct Mlp {
  std::int64_t batch;
  std::mt19937 random{0};
  Buffer x;
  std::vector<int> labels;
  std::array<Layer, 3> layers;

  explicit Mlp(std::int64_t batch_size)
      : batch(batch_size), x(batch * 784),
        labels(batch), layers{Layer(784, 512, batch, random), Layer(512, 256, batch, random),
                              Layer(256, 10, batch, random)} {
    std::normal_distribution<float> normal;
    std::generate_n(x.data(), x.size(), [&] { return normal(random); });
    std::generate(labels.begin(), labels.end(), [&] { return static_cast<int>(random() % 10); });
  }

  const float* input_of(std::size_t i) const { return i == 0 ? x.data() : layers[i - 1].y.data(); }

  float step(float lr) {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      Layer& layer = layers[i];
      product('N', 'T', batch, layer.out, layer.in, input_of(i), layer.weight.data(), layer.y.data());
      add_bias(layer, batch, /*relu=*/i + 1 < layers.size());
    }
    const float loss = softmax_cross_entropy(layers.back(), labels);
    for (std::size_t i = layers.size(); i-- > 0;) {
      Layer& layer = layers[i];
      product('T', 'N', layer.out, layer.in, batch, layer.grad_y.data(), input_of(i), layer.grad_weight.data());
      sum_rows(layer, batch);
      if (i == 0) continue;  // the gradient of the data is not needed
      product('N', 'N', batch, layer.in, layer.out, layer.grad_y.data(), layer.weight.data(),
              layers[i - 1].grad_y.data());
      relu_backward(layers[i - 1]);
    }
    for (const Layer& layer : layers) {
      descend(layer.weight, layer.grad_weight, lr);
      descend(layer.bias, layer.grad_bias, lr);
    }
    return loss;
  }

  double flops() const {
    double total = 0;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      total += (i == 0 ? 4.0 : 6.0) * static_cast<double>(batch * layers[i].in * layers[i].out);
    }
    return total;
  }
};

}  // namespace

int main() {
  if (bench::threads() != 1) return 0;  // the plain loops have one thread
  omp_set_num_threads(1);
  for (const std::int64_t batch : {32, 128, 512}) {
    const std::string name = "bare_mlp_step_" + std::to_string(batch);
    if (!bench::wanted(name)) continue;
    Mlp mlp(batch);
    const float first = mlp.step(0.01F);
    const double seconds = bench::median_seconds([&] { mlp.step(0.01F); }, 2.0);
    if (const float last = mlp.step(0.01F); !(last < first)) {  // the same batch in every step: it must be learnt
      std::fprintf(stderr, "bare loop: the loss went from %g to %g\n", first, last);
      return 1;
    }
    std::printf("{\"name\": \"%s\", \"seconds\": %.4e, \"gflops\": %.1f}\n", name.c_str(), seconds,
                mlp.flops() / seconds / 1e9);
  }
}
