// Batch normalisation of (outer, channels, inner): reductions over all elements of a channel, then one thread per
// element.
#include "lockstep/tensor/cuda/reduce_internal.h"
#include "lockstep/tensor/kernels/for_dtype_internal.h"
#include "lockstep/tensor/kernels/pointwise_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

// Maps elements to channels, and a channel's elements to addresses.
struct Channels {
  explicit Channels(const Rows& rows)
      : channels(rows.n), inner(rows.inner), count(rows.outer * rows.inner), by_channels(channels), by_inner(inner) {}
  std::int64_t channels, inner;
  std::int64_t count;  // elements of one channel
  Divisor by_channels, by_inner;
  HOST_DEVICE std::int64_t of(std::int64_t i) const { return by_channels.divide(by_inner.divide(i).whole).rest; }
  HOST_DEVICE std::int64_t place(std::int64_t channel, std::int64_t r) const {
    const Quotient at = by_inner.divide(r);
    return (at.whole * channels + channel) * inner + at.rest;
  }
  std::int64_t elements() const { return channels * count; }
  // The shape for launch_reduce: one output per channel.
  Rows reduced() const { return {.outer = channels, .n = count, .inner = 1}; }
};

template <class T>
struct BatchMean {
  using Sum = T;
  const T* x;
  T* means;
  Channels channels;
  DEVICE_ONLY Sum start() const { return 0; }
  DEVICE_ONLY void add(Sum& sum, std::int64_t, std::int64_t channel, std::int64_t r) const {
    sum += x[channels.place(channel, r)];
  }
  DEVICE_ONLY Sum join(Sum a, Sum b) const { return a + b; }
  DEVICE_ONLY void finish(std::int64_t channel, Sum sum) const {
    means[channel] = sum / static_cast<T>(channels.count);
  }
};

template <class T>
struct BatchVariance {
  using Sum = T;
  const T *x, *means;
  T *factors, *running_mean, *running_var;
  Channels channels;
  double momentum, eps;
  DEVICE_ONLY Sum start() const { return 0; }
  DEVICE_ONLY void add(Sum& sum, std::int64_t, std::int64_t channel, std::int64_t r) const {
    const T d = x[channels.place(channel, r)] - means[channel];
    sum += d * d;
  }
  DEVICE_ONLY Sum join(Sum a, Sum b) const { return a + b; }
  DEVICE_ONLY void finish(std::int64_t channel, Sum sum) const {
    const auto count = static_cast<T>(channels.count);
    factors[channel] = T(1) / math::sqrt(sum / count + static_cast<T>(eps));
    if (running_mean) move(running_mean[channel], means[channel]);
    if (running_var) move(running_var[channel], sum / (count - T(1)));
  }
  DEVICE_ONLY void move(T& running, T towards) const {
    running = static_cast<T>(1 - momentum) * running + static_cast<T>(momentum) * towards;
  }
};

template <class T>
struct BatchNormalize {
  const T *x, *weight, *bias, *means, *factors;
  T* out;
  Channels channels;
  DEVICE_ONLY void operator()(std::int64_t i) const {
    const std::int64_t c = channels.of(i);
    const T z = (x[i] - means[c]) * factors[c];
    out[i] = (weight ? z * weight[c] : z) + (bias ? bias[c] : T(0));
  }
};

// The means of g and of g z of each channel, with z = (x - mean) factor; their sums are the parameters' gradients.
template <class T>
struct BatchGradients {
  struct Sum {
    T plain, along_z;
  };
  const T *grad, *x, *means, *factors;
  T *mean_gradients, *grad_weight, *grad_bias;
  Channels channels;
  DEVICE_ONLY Sum start() const { return {0, 0}; }
  DEVICE_ONLY void add(Sum& sum, std::int64_t, std::int64_t channel, std::int64_t r) const {
    const std::int64_t at = channels.place(channel, r);
    sum.plain += grad[at];
    sum.along_z += grad[at] * ((x[at] - means[channel]) * factors[channel]);
  }
  DEVICE_ONLY Sum join(const Sum& a, const Sum& b) const { return {a.plain + b.plain, a.along_z + b.along_z}; }
  DEVICE_ONLY void finish(std::int64_t channel, const Sum& sum) const {
    const auto count = static_cast<T>(channels.count);
    mean_gradients[channel] = sum.plain / count;
    mean_gradients[channels.channels + channel] = sum.along_z / count;
    if (grad_weight) grad_weight[channel] = sum.along_z;
    if (grad_bias) grad_bias[channel] = sum.plain;
  }
};

// (g - mean(g) - z mean(g z)) factor weight
template <class T>
struct BatchNormBackward {
  const T *grad, *x, *weight, *means, *factors, *mean_gradients;
  T* out;
  Channels channels;
  DEVICE_ONLY void operator()(std::int64_t i) const {
    const std::int64_t c = channels.of(i);
    const T z = (x[i] - means[c]) * factors[c], scale = weight ? factors[c] * weight[c] : factors[c];
    out[i] = ((grad[i] - mean_gradients[c]) - z * mean_gradients[channels.channels + c]) * scale;
  }
};

}  // namespace

void batch_norm(const void* x, const void* weight, const void* bias, void* out, void* statistics, void* running_mean,
                void* running_var, const Rows& rows, DType dtype, double momentum, double eps) {
  const Channels channels(rows);
  for_float(dtype, [&]<class T>(T) {
    const T* const in = static_cast<const T*>(x);
    T *const means = static_cast<T*>(statistics), *const factors = means + rows.n;
    launch_reduce("batch_norm", channels.reduced(), BatchMean<T>{in, means, channels});
    launch_reduce("batch_norm", channels.reduced(),
                  BatchVariance<T>{in, means, factors, static_cast<T*>(running_mean), static_cast<T*>(running_var),
                                   channels, momentum, eps});
    launch_elements("batch_norm", channels.elements(),
                    BatchNormalize<T>{in, static_cast<const T*>(weight), static_cast<const T*>(bias), means, factors,
                                      static_cast<T*>(out), channels});
  });
}

void batch_norm_backward(const void* grad, const void* x, const void* weight, const void* statistics, void* out,
                         void* grad_weight, void* grad_bias, const Rows& rows, DType dtype) {
  const Channels channels(rows);
  for_float(dtype, [&]<class T>(T) {
    const T *const g = static_cast<const T*>(grad), *const in = static_cast<const T*>(x);
    const T *const means = static_cast<const T*>(statistics), *const factors = means + rows.n;
    const Scratch mean_gradients(2 * rows.n * static_cast<std::int64_t>(sizeof(T)));
    launch_reduce("batch_norm backward", channels.reduced(),
                  BatchGradients<T>{g, in, means, factors, mean_gradients.as<T>(), static_cast<T*>(grad_weight),
                                    static_cast<T*>(grad_bias), channels});
    launch_elements("batch_norm backward", channels.elements(),
                    BatchNormBackward<T>{g, in, static_cast<const T*>(weight), means, factors, mean_gradients.as<T>(),
                                         static_cast<T*>(out), channels});
  });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
