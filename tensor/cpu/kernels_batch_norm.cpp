// Batch normalisation of (outer, channels, inner), one channel at a time. A channel's sum adds the sums of its rows,
// in order.
#include "lockstep/tensor/kernels/level_internal.h"

#include <algorithm>
#include <cmath>

#include "lockstep/tensor/cpu/loops_internal.h"
#include "lockstep/tensor/cpu/packets_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

// The sum over a channel's rows of sum(first element of the row).
template <class F>
double sum_rows(const Rows& rows, std::int64_t channel, F sum) {
  double total = 0;
  for (std::int64_t o = 0; o < rows.outer; ++o) total += sum((o * rows.n + channel) * rows.inner);
  return total;
}

// The sum of g[i] (x[i] - mean), in an order that depends on `n` alone.
template <class T>
double sum_products(const T* g, const T* x, T mean, std::int64_t n) {
  constexpr int kSize = kPacketSize<T>;
  double total = 0;
  for (std::int64_t begin = 0; begin < n; begin += kSumBlock) {
    const std::int64_t end = std::min(n, begin + kSumBlock);
    Packet<T> sums = Packet<T>::Zero();
    std::int64_t i = begin;
    for (; i + kSize <= end; i += kSize) sums += load_packet(g + i) * (load_packet(x + i) - mean);
    if (i < end) sums += load_tail(g + i, end - i, T(0)) * (load_tail(x + i, end - i, mean) - mean);
    total += static_cast<double>(add_lanes<T>(sums));
  }
  return total;
}

template <class T>
struct Training {
  const T *x, *weight, *bias;
  T *out, *means, *factors, *running_mean, *running_var;
  double momentum, eps;

  void run(const Rows& rows, std::int64_t c) const {
    const auto count = static_cast<double>(rows.outer * rows.inner);
    const auto value = [](const Packet<T>& v) { return v; };
    const double mean =
        sum_rows(rows, c, [&](std::int64_t at) { return sum_packets(x + at, rows.inner, value); }) / count;
    const T m = static_cast<T>(mean);
    const auto square = [m](const Packet<T>& v) { return Packet<T>((v - m) * (v - m)); };
    const double squares = sum_rows(rows, c, [&](std::int64_t at) { return sum_packets(x + at, rows.inner, square); });
    means[c] = m;
    factors[c] = static_cast<T>(1 / std::sqrt(squares / count + eps));
    if (running_mean) move(running_mean[c], mean);
    if (running_var) move(running_var[c], squares / (count - 1));
    const T scale = weight ? factors[c] * weight[c] : factors[c], shift = bias ? bias[c] : T(0);
    for (std::int64_t o = 0; o < rows.outer; ++o) {
      const T* const from = x + (o * rows.n + c) * rows.inner;
      T* const to = out + (o * rows.n + c) * rows.inner;
      for (std::int64_t i = 0; i < rows.inner; ++i) to[i] = (from[i] - m) * scale + shift;
    }
  }
  void move(T& running, double towards) const {
    running = static_cast<T>((1 - momentum) * static_cast<double>(running) + momentum * towards);
  }
};

// With z = (x - mean) factor: (g - mean(g) - z mean(g z)) factor weight.
template <class T>
struct Backward {
  const T *grad, *x, *weight, *means, *factors;
  T *out, *grad_weight, *grad_bias;

  void run(const Rows& rows, std::int64_t c) const {
    const T mean = means[c], factor = factors[c];
    const double total = sum_rows(rows, c, [&](std::int64_t at) {
      return sum_packets(grad + at, rows.inner, [](const Packet<T>& v) { return v; });
    });
    const double along_z = static_cast<double>(factor) * sum_rows(rows, c, [&](std::int64_t at) {
                             return sum_products(grad + at, x + at, mean, rows.inner);
                           });
    if (grad_weight) grad_weight[c] = static_cast<T>(along_z);
    if (grad_bias) grad_bias[c] = static_cast<T>(total);
    const auto count = static_cast<double>(rows.outer * rows.inner);
    const T shift = static_cast<T>(total / count), slope = factor * static_cast<T>(along_z / count);
    const T scale = weight ? factor * weight[c] : factor;
    for (std::int64_t o = 0; o < rows.outer; ++o) {
      const std::int64_t at = (o * rows.n + c) * rows.inner;
      for (std::int64_t i = at; i < at + rows.inner; ++i) out[i] = ((grad[i] - shift) - (x[i] - mean) * slope) * scale;
    }
  }
};

}  // namespace

void batch_norm(const void* x, const void* weight, const void* bias, void* out, void* statistics, void* running_mean,
                void* running_var, const Rows& rows, DType dtype, double momentum, double eps) {
  for_float(dtype, [&]<class T>(T) {
    T* const means = as<T>(statistics);
    const Training<T> body{as<T>(x),       as<T>(weight),       as<T>(bias),        as<T>(out), means,
                           means + rows.n, as<T>(running_mean), as<T>(running_var), momentum,   eps};
    for_units(rows.n, rows.outer * rows.inner, [&](std::int64_t channel) { body.run(rows, channel); });
  });
}

void batch_norm_backward(const void* grad, const void* x, const void* weight, const void* statistics, void* out,
                         void* grad_weight, void* grad_bias, const Rows& rows, DType dtype) {
  for_float(dtype, [&]<class T>(T) {
    const T* const means = as<T>(statistics);
    const Backward<T> body{as<T>(grad),    as<T>(x),   as<T>(weight),      means,
                           means + rows.n, as<T>(out), as<T>(grad_weight), as<T>(grad_bias)};
    for_units(rows.n, rows.outer * rows.inner, [&](std::int64_t channel) { body.run(rows, channel); });
  });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
