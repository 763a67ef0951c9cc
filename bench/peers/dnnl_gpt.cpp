// The matrix products of a GPT's training step, as bare oneDNN products: the bound for the step of any framework on oneDNN.
//
// A linear layer has three: y = x w^T, and in backward x' = y' w and w' = y'^T x. So has the output layer. The attention of a
// layer has six of (time, dim) or (time, time) matrices for each batch and head: q k^T and p v; in backward y' v^T, p^T y', s' k
// and s'^T q. They are whole products: what causal attention could leave out is computed, what tiles compute twice is not.
// Products run in the order of a step; those of equal shapes share operands, so the data of a layer stay in the caches.
#include <oneapi/dnnl/dnnl.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <unordered_map>
#include <vector>

#include "support/gpt_shapes.h"
#include "support/timing.h"

extern "C" void omp_set_num_threads(int);  // clang has no <omp.h> without libomp; oneDNN brings libgomp

namespace {

using dnnl::memory;

struct Free {
  void operator()(float* data) const { ::operator delete[](data, std::align_val_t{64}); }
};

// Zeroed operands by their role ('a', 'b' or 'c') and size.
class Operands {
 public:
  float* of(char role, std::int64_t size) {
    std::unique_ptr<float, Free>& data = all_[{role, size}];
    if (!data) data.reset(new (std::align_val_t{64}) float[static_cast<std::size_t>(size)]());
    return data.get();
  }

 private:
  std::map<std::pair<char, std::int64_t>, std::unique_ptr<float, Free>> all_;
};

// A row-major matrix for each of `batch` problems; `transposed`: it is stored as (columns, rows).
memory::desc matrices(std::int64_t batch, std::int64_t rows, std::int64_t columns, bool transposed) {
  const memory::dims strides =
      transposed ? memory::dims{rows * columns, 1, rows} : memory::dims{rows * columns, columns, 1};
  return {{batch, rows, columns}, memory::data_type::f32, strides};
}

dnnl::matmul::primitive_desc description(const dnnl::engine& engine, const memory::desc& a, const memory::desc& b,
                                         const memory::desc& c) {
#if DNNL_VERSION_MAJOR >= 3
  return {engine, a, b, c};
#else
  return {dnnl::matmul::desc(a, b, c), engine};
#endif
}

class Step {
 public:
  explicit Step(const bench::GptShape& shape) {
    const std::int64_t tokens = shape.batch * shape.context, width = shape.width;
    for (std::int64_t layer = 0; layer < bench::kGptLayers; ++layer) {
      add_linear_forward(tokens, width, 3 * width);
      add_attention_forward(shape);
      add_linear_forward(tokens, width, width);
      add_linear_forward(tokens, width, 4 * width);
      add_linear_forward(tokens, 4 * width, width);
    }
    add_linear_forward(tokens, width, bench::kGptVocabulary);
    add_linear_backward(tokens, width, bench::kGptVocabulary);
    for (std::int64_t layer = 0; layer < bench::kGptLayers; ++layer) {
      add_linear_backward(tokens, 4 * width, width);
      add_linear_backward(tokens, width, 4 * width);
      add_linear_backward(tokens, width, width);
      add_attention_backward(shape);
      add_linear_backward(tokens, width, 3 * width);
    }
  }

  void run() {
    for (const Product& product : products_) product.primitive.execute(stream_, product.arguments);
    stream_.wait();
  }

 private:
  struct Product {
    dnnl::matmul primitive;
    std::unordered_map<int, memory> arguments;
  };

  // c (m, n) = a (m, k) b (k, n) or their transposes, for each of `batch` problems
  void add(std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k, bool transpose_a, bool transpose_b) {
    const memory::desc a = matrices(batch, m, k, transpose_a), b = matrices(batch, k, n, transpose_b),
                       c = matrices(batch, m, n, false);
    products_.push_back({dnnl::matmul(description(engine_, a, b, c)),
                         {{DNNL_ARG_SRC, memory(a, engine_, operands_.of('a', batch * m * k))},
                          {DNNL_ARG_WEIGHTS, memory(b, engine_, operands_.of('b', batch * k * n))},
                          {DNNL_ARG_DST, memory(c, engine_, operands_.of('c', batch * m * n))}}});
  }
  void add_linear_forward(std::int64_t tokens, std::int64_t in, std::int64_t out) {
    add(1, tokens, out, in, false, true);
  }
  void add_linear_backward(std::int64_t tokens, std::int64_t in, std::int64_t out) {
    add(1, tokens, in, out, false, false);
    add(1, out, in, tokens, true, false);
  }
  void add_attention_forward(const bench::GptShape& shape) {
    const std::int64_t problems = shape.batch * shape.heads, time = shape.context, dim = shape.width / shape.heads;
    add(problems, time, time, dim, false, true);
    add(problems, time, dim, time, false, false);
  }
  void add_attention_backward(const bench::GptShape& shape) {
    const std::int64_t problems = shape.batch * shape.heads, time = shape.context, dim = shape.width / shape.heads;
    add(problems, time, time, dim, false, true);
    add(problems, time, dim, time, true, false);
    add(problems, time, dim, time, false, false);
    add(problems, time, dim, time, true, false);
  }

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  Operands operands_;
  std::vector<Product> products_;
};

}  // namespace

int main() {
  omp_set_num_threads(bench::threads());
  for (const bench::GptShape& shape : bench::kGptShapes) {
    Step step(shape);
    bench::measure(
        std::string("bare_") + shape.row, [&] { step.run(); }, 2.0);
  }
}
