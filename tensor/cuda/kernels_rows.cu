// Operations along one dimension of (outer, n, inner): a block of threads per row if inner is 1, otherwise one thread
// per column.
#include <limits>
#include <type_traits>

#include "lockstep/tensor/cuda/reduce_internal.h"
#include "lockstep/tensor/cuda/register_row_internal.h"
#include "lockstep/tensor/kernels/for_dtype_internal.h"
#include "lockstep/tensor/kernels/pointwise_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

struct Add {
  template <class T>
  DEVICE_ONLY T operator()(T a, T b) const {
    return a + b;
  }
};
struct Largest {  // may ignore a NaN, which makes every exponential sum NaN anyway
  template <class T>
  DEVICE_ONLY T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};

// Joins term(i) of a row of n, by the whole block.
template <class T, class Join, class Term>
DEVICE_ONLY T over_row(const Block& block, std::int64_t n, T start, Join join, Term term) {
  PerThread<T> sums;
  block.each([&](int thread) {
    T sum = start;
    UNROLL
    for (std::int64_t i = thread; i < n; i += kThreads) sum = join(sum, term(i));
    sums[thread] = sum;
  });
  return block.reduce(sums, join);
}
template <class Step>
DEVICE_ONLY void each_of_row(const Block& block, std::int64_t n, Step step) {
  block.each([&](int thread) {
    for (std::int64_t i = thread; i < n; i += kThreads) step(i);
  });
}

// The shift that prevents overflow of the exponentials; 0 for a row of -inf, where -inf - -inf would be NaN.
template <class T>
DEVICE_ONLY T shift_of(T highest) {
  return highest == -std::numeric_limits<T>::infinity() ? T(0) : highest;
}

template <class T, int kWidth>
struct SoftmaxRegisterRows {
  const T* in;
  T* out;
  Rows rows;
  bool log;
  DEVICE_ONLY void operator()(const Block& block) const {
    RegisterRows<T, kWidth> x(block, in, rows.outer, rows.n);
    const PerThread<T> highest =
        x.reduce(-std::numeric_limits<T>::infinity(), Largest{}, [](T value) { return value; });
    x.update([&](int thread, T value) { return value - shift_of(highest[thread]); });
    if (log) {
      const PerThread<T> total = x.reduce(T(0), Add{}, [](T value) { return math::exp(value); });
      return x.store(out, [&](int thread, T value) { return value - math::log(total[thread]); });
    }
    x.update([](int, T value) { return math::exp(value); });
    const PerThread<T> total = x.reduce(T(0), Add{}, [](T value) { return value; });
    x.store(out, [&](int thread, T value) { return value * (T(1) / total[thread]); });
  }
};

template <class T>
struct SoftmaxRow {
  const T* in;
  T* out;
  std::int64_t n;
  bool log;
  DEVICE_ONLY void operator()(const Block& block) const {
    const T* x = in + block.index() * n;
    T* y = out + block.index() * n;
    const T shift = shift_of(
        over_row(block, n, -std::numeric_limits<T>::infinity(), Largest{}, [&](std::int64_t i) { return x[i]; }));
    const T total = over_row(block, n, T(0), Add{}, [&](std::int64_t i) { return math::exp(x[i] - shift); });
    const T log_total = log ? math::log(total) : T(0), factor = T(1) / total;
    each_of_row(block, n,
                [&](std::int64_t i) { y[i] = log ? (x[i] - shift) - log_total : math::exp(x[i] - shift) * factor; });
  }
};

// The first elements of columns: thread i has column i % inner of outer index i / inner.
struct Columns {
  explicit Columns(const Rows& rows) : n(rows.n), inner(rows.inner), by_inner(inner) {}
  std::int64_t n, inner;
  Divisor by_inner;
  DEVICE_ONLY std::int64_t origin(std::int64_t column) const {
    const Quotient at = by_inner.divide(column);
    return at.whole * n * inner + at.rest;
  }
};

// The sum of term(i) for the elements of a column, `step` apart. Every kBetween terms it continues in f64: rounding
// errors stay small, and few operations are f64, which is slow on many GPUs.
template <class T, class Term>
DEVICE_ONLY T over_column(std::int64_t end, std::int64_t step, Term term) {
  constexpr std::int64_t kBetween = 64;
  double total = 0;
  for (std::int64_t i = 0; i < end;) {
    T part = 0;
    for (const std::int64_t stop = i + kBetween * step < end ? i + kBetween * step : end; i < stop; i += step)
      part += term(i);
    total += static_cast<double>(part);
  }
  return static_cast<T>(total);
}

template <class T>
struct SoftmaxColumn {
  const T* in;
  T* out;
  Columns columns;
  bool log;
  DEVICE_ONLY void operator()(std::int64_t column) const {
    const std::int64_t origin = columns.origin(column), step = columns.inner, end = columns.n * step;
    const T* x = in + origin;
    T* y = out + origin;
    T highest = -std::numeric_limits<T>::infinity();
    for (std::int64_t i = 0; i < end; i += step) highest = Largest{}(highest, x[i]);
    const T shift = shift_of(highest);
    const T total = over_column<T>(end, step, [=](std::int64_t i) { return math::exp(x[i] - shift); });
    const T log_total = log ? math::log(total) : T(0);
    for (std::int64_t i = 0; i < end; i += step)
      y[i] = log ? (x[i] - shift) - log_total : math::exp(x[i] - shift) / total;
  }
};

// softmax: y (g - sum(g y)); log_softmax: g - e^y sum(g).
template <class T>
DEVICE_ONLY T softmax_term(T g, T y, bool log) {
  return log ? g : g * y;
}
template <class T>
DEVICE_ONLY T softmax_gradient(T g, T y, T total, bool log) {
  return log ? g - math::exp(y) * total : y * (g - total);
}

template <class T, int kWidth>
struct SoftmaxBackwardRegisterRows {
  const T *grad, *values;
  T* out;
  Rows rows;
  bool log;
  DEVICE_ONLY void operator()(const Block& block) const {
    RegisterRows<T, kWidth> g(block, grad, rows.outer, rows.n), y(block, values, rows.outer, rows.n);
    const PerThread<T> total =
        g.reduce_with(y, T(0), Add{}, [&](T grad, T value) { return softmax_term(grad, value, log); });
    g.store_with(y, out,
                 [&](int thread, T grad, T value) { return softmax_gradient(grad, value, total[thread], log); });
  }
};

template <class T>
struct SoftmaxBackwardRow {
  const T *grad, *values;
  T* out;
  std::int64_t n;
  bool log;
  DEVICE_ONLY void operator()(const Block& block) const {
    const T *g = grad + block.index() * n, *y = values + block.index() * n;
    T* to = out + block.index() * n;
    const T total = over_row(block, n, T(0), Add{}, [&](std::int64_t i) { return softmax_term(g[i], y[i], log); });
    each_of_row(block, n, [&](std::int64_t i) { to[i] = softmax_gradient(g[i], y[i], total, log); });
  }
};

template <class T>
struct SoftmaxBackwardColumn {
  const T *grad, *values;
  T* out;
  Columns columns;
  bool log;
  DEVICE_ONLY void operator()(std::int64_t column) const {
    const std::int64_t origin = columns.origin(column), step = columns.inner, end = columns.n * step;
    const T *g = grad + origin, *y = values + origin;
    const bool of_logs = log;
    const T total = over_column<T>(end, step, [=](std::int64_t i) { return softmax_term(g[i], y[i], of_logs); });
    for (std::int64_t i = 0; i < end; i += step) out[origin + i] = softmax_gradient(g[i], y[i], total, log);
  }
};

// out = (x - mean) factor weight + bias, where factor is 1 / sqrt(variance + eps). If not centered, the mean is 0.
template <class T>
struct LayerNormRow {
  const T *in, *weight, *bias;
  T *out, *means, *factors;
  std::int64_t n;
  double eps;
  bool centered;
  DEVICE_ONLY void operator()(const Block& block) const {
    const T* x = in + block.index() * n;
    T* y = out + block.index() * n;
    const auto count = static_cast<T>(n);
    const T mean = centered ? over_row(block, n, T(0), Add{}, [&](std::int64_t i) { return x[i]; }) / count : T(0);
    const T variance =
        over_row(block, n, T(0), Add{}, [&](std::int64_t i) { return (x[i] - mean) * (x[i] - mean); }) / count;
    const T factor = T(1) / math::sqrt(variance + static_cast<T>(eps));
    each_of_row(block, n, [&](std::int64_t i) {
      const T z = (x[i] - mean) * factor;
      y[i] = (weight ? z * weight[i] : z) + (bias ? bias[i] : T(0));
    });
    block.each([&](int thread) {
      if (thread != 0) return;
      means[block.index()] = mean;
      factors[block.index()] = factor;
    });
  }
};

template <class T, int kWidth>
struct LayerNormRegisterRows {
  const T *in, *weight, *bias;
  T *out, *means, *factors;
  Rows rows;
  double eps;
  bool centered;
  DEVICE_ONLY void operator()(const Block& block) const {
    RegisterRows<T, kWidth> x(block, in, rows.outer, rows.n);
    const auto count = static_cast<T>(rows.n);
    PerThread<T> mean, factor;
    block.each([&](int thread) { mean[thread] = T(0); });
    if (centered) mean = x.reduce(T(0), Add{}, [](T value) { return value; });
    block.each([&](int thread) { mean[thread] /= count; });
    x.update([&](int thread, T value) { return value - mean[thread]; });
    factor = x.reduce(T(0), Add{}, [](T value) { return value * value; });
    block.each([&](int thread) { factor[thread] = T(1) / math::sqrt(factor[thread] / count + static_cast<T>(eps)); });
    x.update([&](int thread, T value) { return value * factor[thread]; });
    if (weight) x.update_from(weight, [](T value, T scale) { return value * scale; });
    if (bias) x.update_from(bias, [](T value, T shift) { return value + shift; });
    x.store(out, [](int, T value) { return value; });
    x.once_per_row([&](int thread, std::int64_t row) {
      means[row] = mean[thread];
      factors[row] = factor[thread];
    });
  }
};

// With z = (x - mean) factor and gw = g weight: (gw - mean(gw) - z mean(gw z)) factor, without mean(gw) if not centered.
template <class T>
struct LayerNormBackwardRow {
  const T *grad, *in, *weight, *means, *factors;
  T* out;
  std::int64_t n;
  bool centered;
  DEVICE_ONLY void operator()(const Block& block) const {
    const T *g = grad + block.index() * n, *x = in + block.index() * n;
    const T mean = means[block.index()], factor = factors[block.index()], count = static_cast<T>(n);
    const auto weighted = [&](std::int64_t i) { return weight ? g[i] * weight[i] : g[i]; };
    const auto normal = [&](std::int64_t i) { return (x[i] - mean) * factor; };
    const T shift = centered ? over_row(block, n, T(0), Add{}, weighted) / count : T(0);
    const T slope = over_row(block, n, T(0), Add{}, [&](std::int64_t i) { return weighted(i) * normal(i); }) / count;
    each_of_row(block, n, [&](std::int64_t i) {
      out[block.index() * n + i] = ((weighted(i) - shift) - normal(i) * slope) * factor;
    });
  }
};

template <class T, int kWidth>
struct LayerNormBackwardRegisterRows {
  const T *grad, *in, *weight, *means, *factors;
  T* out;
  Rows rows;
  bool centered;
  DEVICE_ONLY void operator()(const Block& block) const {
    RegisterRows<T, kWidth> g(block, grad, rows.outer, rows.n), x(block, in, rows.outer, rows.n);
    const auto count = static_cast<T>(rows.n);
    PerThread<T> mean, factor, shift;
    block.each([&](int thread) {
      const bool exists = x.row(thread) < rows.outer;
      mean[thread] = exists ? means[x.row(thread)] : T(0);
      factor[thread] = exists ? factors[x.row(thread)] : T(0);
      shift[thread] = T(0);
    });
    x.update([&](int thread, T value) { return (value - mean[thread]) * factor[thread]; });
    if (weight) g.update_from(weight, [](T value, T scale) { return value * scale; });
    if (centered) shift = g.reduce(T(0), Add{}, [](T value) { return value; });
    const PerThread<T> slope = g.reduce_with(x, T(0), Add{}, [](T grad, T normal) { return grad * normal; });
    g.store_with(x, out, [&](int thread, T grad, T normal) {
      return ((grad - shift[thread] / count) - normal * (slope[thread] / count)) * factor[thread];
    });
  }
};

// The parameters' gradients: the sums of g z and of g over the rows.
template <class T>
struct LayerNormAffine {
  struct Sum {
    T weight, bias;
  };
  const T *grad, *in, *means, *factors;
  T *grad_weight, *grad_bias;
  DEVICE_ONLY Sum start() const { return {0, 0}; }
  DEVICE_ONLY void add(Sum& sum, std::int64_t at, std::int64_t, std::int64_t row) const {
    sum.weight += grad[at] * ((in[at] - means[row]) * factors[row]);
    sum.bias += grad[at];
  }
  DEVICE_ONLY Sum join(const Sum& a, const Sum& b) const { return {a.weight + b.weight, a.bias + b.bias}; }
  DEVICE_ONLY void finish(std::int64_t output, const Sum& sum) const {
    if (grad_weight) grad_weight[output] = sum.weight;
    if (grad_bias) grad_bias[output] = sum.bias;
  }
};

// A row is divided among the threads: each sums its part, then scans the part from the sum of the parts before it. Sums
// of f32 are f64.
template <class T>
struct CumsumRow {
  using Sum = std::conditional_t<std::is_same_v<T, float>, double, T>;
  const T* in;
  T* out;
  Columns columns;
  bool reverse;
  DEVICE_ONLY void operator()(const Block& block) const {
    const std::int64_t origin = columns.origin(block.index()), n = columns.n, share = (n + kThreads - 1) / kThreads;
    const auto at = [&](std::int64_t r) { return origin + (reverse ? n - 1 - r : r) * columns.inner; };
    const auto end_of = [&](int thread) { return n < (thread + 1) * share ? n : (thread + 1) * share; };
    PerThread<Sum> before;
    block.each([&](int thread) {
      Sum sum = 0;
      for (std::int64_t r = thread * share; r < end_of(thread); ++r) sum = static_cast<Sum>(sum + in[at(r)]);
      before[thread] = sum;
    });
    block.sum_before(before);
    block.each([&](int thread) {
      Sum sum = before[thread];
      for (std::int64_t r = thread * share; r < end_of(thread); ++r) {
        sum = static_cast<Sum>(sum + in[at(r)]);
        out[at(r)] = static_cast<T>(sum);
      }
    });
  }
};

}  // namespace

void softmax(const void* in, void* out, const Rows& rows, DType dtype, bool log) {
  for_float(dtype, [&]<class T>(T) {
    const T* x = static_cast<const T*>(in);
    T* y = static_cast<T*>(out);
    if (launch_register_rows<T, SoftmaxRegisterRows>("softmax", rows, x, y, rows, log)) return;
    if (rows.inner == 1) return launch_blocks("softmax", rows.outer, SoftmaxRow<T>{x, y, rows.n, log});
    launch_elements("softmax", rows.outer * rows.inner, SoftmaxColumn<T>{x, y, Columns(rows), log});
  });
}

void softmax_backward(const void* grad, const void* y, void* out, const Rows& rows, DType dtype, bool log) {
  for_float(dtype, [&]<class T>(T) {
    const T *g = static_cast<const T*>(grad), *values = static_cast<const T*>(y);
    T* to = static_cast<T*>(out);
    if (launch_register_rows<T, SoftmaxBackwardRegisterRows>("softmax backward", rows, g, values, to, rows, log))
      return;
    if (rows.inner == 1)
      return launch_blocks("softmax backward", rows.outer, SoftmaxBackwardRow<T>{g, values, to, rows.n, log});
    launch_elements("softmax backward", rows.outer * rows.inner,
                    SoftmaxBackwardColumn<T>{g, values, to, Columns(rows), log});
  });
}

void layer_norm(const void* x, const void* weight, const void* bias, void* out, void* statistics, const Rows& rows,
                DType dtype, double eps, bool centered) {
  for_float(dtype, [&]<class T>(T) {
    const T *in = static_cast<const T*>(x), *scale = static_cast<const T*>(weight),
            *shift = static_cast<const T*>(bias);
    T *y = static_cast<T*>(out), *means = static_cast<T*>(statistics), *factors = means + rows.outer;
    const char* op = "layer_norm";
    if (launch_register_rows<T, LayerNormRegisterRows>(op, rows, in, scale, shift, y, means, factors, rows, eps,
                                                       centered))
      return;
    launch_blocks(op, rows.outer, LayerNormRow<T>{in, scale, shift, y, means, factors, rows.n, eps, centered});
  });
}

void layer_norm_backward(const void* grad, const void* x, const void* weight, const void* statistics, void* out,
                         const Rows& rows, DType dtype, bool centered) {
  for_float(dtype, [&]<class T>(T) {
    const T *g = static_cast<const T*>(grad), *in = static_cast<const T*>(x), *scale = static_cast<const T*>(weight);
    const T *means = static_cast<const T*>(statistics), *factors = means + rows.outer;
    T* to = static_cast<T*>(out);
    const char* op = "layer_norm backward";
    if (launch_register_rows<T, LayerNormBackwardRegisterRows>(op, rows, g, in, scale, means, factors, to, rows,
                                                               centered))
      return;
    launch_blocks(op, rows.outer, LayerNormBackwardRow<T>{g, in, scale, means, factors, to, rows.n, centered});
  });
}

void layer_norm_backward_affine(const void* grad, const void* x, const void* statistics, void* grad_weight,
                                void* grad_bias, const Rows& rows, DType dtype) {
  for_float(dtype, [&]<class T>(T) {
    const T* means = static_cast<const T*>(statistics);
    launch_reduce("layer_norm backward", Rows{.outer = 1, .n = rows.outer, .inner = rows.n},
                  LayerNormAffine<T>{static_cast<const T*>(grad), static_cast<const T*>(x), means, means + rows.outer,
                                     static_cast<T*>(grad_weight), static_cast<T*>(grad_bias)});
  });
}

void cumsum(const void* in, void* out, const Rows& rows, DType dtype, bool reverse) {
  for_number(dtype, [&]<class T>(T) {
    launch_blocks("cumsum", rows.outer * rows.inner,
                  CumsumRow<T>{static_cast<const T*>(in), static_cast<T*>(out), Columns(rows), reverse});
  });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
