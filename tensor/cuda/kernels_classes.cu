// Losses over classes: negative log likelihood and cross-entropy. y and x are (outer, n, inner), n the classes; there
// are outer * inner samples.
#include <limits>

#include "lockstep/tensor/cuda/reduce_internal.h"
#include "lockstep/tensor/kernels/for_dtype_internal.h"
#include "lockstep/tensor/kernels/pointwise_internal.h"
#include "lockstep/tensor/ops/losses.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

template <class T>
struct Samples {
  Samples(const std::int64_t* labels, const void* weight, const Rows& rows, const raw::NllOptions& options)
      : labels(labels), weight(static_cast<const T*>(weight)), n(rows.n), inner(rows.inner), by_n(n), by_inner(inner),
        count(rows.outer * rows.inner), ignored(options.ignore_index),
        keep(static_cast<T>(1 - options.label_smoothing)),
        spread(static_cast<T>(options.label_smoothing / static_cast<double>(rows.n))), fault(fault_record()) {}

  const std::int64_t* labels;
  const T* weight;  // weight of each class, or null for 1
  std::int64_t n, inner;
  Divisor by_n, by_inner;
  std::int64_t count, ignored;
  T keep, spread;  // the label's weight, and the smoothing weight of every class
  Fault* fault;

  DEVICE_ONLY std::int64_t start(std::int64_t sample) const {
    const Quotient at = by_inner.divide(sample);
    return at.whole * n * inner + at.rest;
  }
  struct Score {
    std::int64_t sample, c;
  };
  // The sample and class of element i.
  DEVICE_ONLY Score score(std::int64_t i) const {
    const Quotient at = by_inner.divide(i), of = by_n.divide(at.whole);
    return {of.whole * inner + at.rest, of.rest};
  }
  DEVICE_ONLY T weight_of(std::int64_t label) const { return weight ? weight[label] : T(1); }
  // The sample's class, -1 if it is ignored. A class outside [0, n) is reported and ignored.
  DEVICE_ONLY std::int64_t label(std::int64_t sample) const {
    const std::int64_t label = labels[sample];
    if (label == ignored) return -1;
    if (label >= 0 && label < n) return label;
    report(fault, Fault::kClass, sample, label, n);
    return -1;
  }
};

// The loss of one sample, from log_probability(c).
template <class T, class F>
DEVICE_ONLY T loss_of(const Samples<T>& s, std::int64_t sample, F log_probability) {
  const std::int64_t label = s.label(sample);
  if (label < 0) return T(0);
  T loss = -s.keep * s.weight_of(label) * log_probability(label);
  if (s.spread != T(0)) {
    T all = 0;
    for (std::int64_t c = 0; c < s.n; ++c) all += s.weight_of(c) * log_probability(c);
    loss -= s.spread * all;
  }
  return loss;
}

template <class T>
struct NllLoss {
  Samples<T> s;
  const T* y;
  T* losses;
  DEVICE_ONLY void operator()(std::int64_t sample) const {
    const T* scores = y + s.start(sample);
    losses[sample] = loss_of(s, sample, [&](std::int64_t c) { return scores[c * s.inner]; });
  }
};

// The sum of losses and of the weights that count; the mean is their quotient.
template <class T>
struct MeanOfLosses {
  struct Sum {
    T loss;
    T weight;
  };
  Samples<T> s;
  const T* losses;
  T* out;
  double* total_weight;
  raw::Reduction reduction;
  DEVICE_ONLY Sum start() const { return {0, 0}; }
  DEVICE_ONLY void add(Sum& sum, std::int64_t at, std::int64_t, std::int64_t) const {
    const std::int64_t label = s.label(at);
    if (label < 0) return;
    sum.loss += losses[at];
    sum.weight += s.weight_of(label);
  }
  DEVICE_ONLY Sum join(const Sum& a, const Sum& b) const { return {a.loss + b.loss, a.weight + b.weight}; }
  DEVICE_ONLY void finish(std::int64_t, const Sum& sum) const {
    *total_weight = static_cast<double>(sum.weight);
    if (reduction == raw::Reduction::kMean) *out = sum.loss / sum.weight;
    if (reduction == raw::Reduction::kSum) *out = sum.loss;
  }
};

// The gradient of a sample's loss: the result's gradient, divided by the weights for a mean.
template <class T>
struct SampleGradient {
  const T* grad;
  const double* total_weight;
  raw::Reduction reduction;
  DEVICE_ONLY T operator[](std::int64_t sample) const {
    if (reduction == raw::Reduction::kNone) return grad[sample];
    return reduction == raw::Reduction::kMean ? static_cast<T>(static_cast<double>(*grad) / *total_weight) : *grad;
  }
};

template <class T>
struct NllSlope {  // the gradient of element i of y
  Samples<T> s;
  SampleGradient<T> gradient;
  T* out;
  DEVICE_ONLY void operator()(std::int64_t i) const {
    const auto [sample, c] = s.score(i);
    const std::int64_t label = s.label(sample);
    const T share = s.spread * s.weight_of(c) + (label == c ? s.keep * s.weight_of(c) : T(0));
    out[i] = label < 0 ? T(0) : -gradient[sample] * share;
  }
};

// Log softmax of a score is (x - shift) - log_sum.
template <class T>
struct Statistics {
  const T* x;
  T *shift, *log_sum;
};

template <class T>
struct CrossEntropy {  // one thread per sample
  Samples<T> s;
  Statistics<T> stats;
  T* losses;
  DEVICE_ONLY void operator()(std::int64_t sample) const {
    const T* scores = stats.x + s.start(sample);
    T highest = -std::numeric_limits<T>::infinity(), total = 0;
    for (std::int64_t c = 0; c < s.n; ++c) highest = scores[c * s.inner] > highest ? scores[c * s.inner] : highest;
    for (std::int64_t c = 0; c < s.n; ++c) total += math::exp(scores[c * s.inner] - highest);
    const T log_sum = math::log(total);
    stats.shift[sample] = highest;
    stats.log_sum[sample] = log_sum;
    losses[sample] = loss_of(s, sample, [&](std::int64_t c) { return (scores[c * s.inner] - highest) - log_sum; });
  }
};

// The same with a block of threads per sample, for many classes in contiguous memory.
template <class T>
struct CrossEntropyRow {
  Samples<T> s;
  Statistics<T> stats;
  T* losses;
  DEVICE_ONLY void operator()(const Block& block) const {
    const std::int64_t sample = block.index(), n = s.n;
    const T* scores = stats.x + sample * n;
    PerThread<T> part;
    block.each([&](int thread) {
      T highest = -std::numeric_limits<T>::infinity();
      for (std::int64_t c = thread; c < n; c += kThreads) highest = scores[c] > highest ? scores[c] : highest;
      part[thread] = highest;
    });
    const T highest = block.reduce(part, [](T a, T b) { return a > b ? a : b; });
    const auto add = [](T a, T b) { return a + b; };
    block.each([&](int thread) {
      T total = 0;
      for (std::int64_t c = thread; c < n; c += kThreads) total += math::exp(scores[c] - highest);
      part[thread] = total;
    });
    const T log_sum = math::log(block.reduce(part, add));
    block.each([&](int thread) {
      T all = 0;
      for (std::int64_t c = thread; s.spread != T(0) && c < n; c += kThreads)
        all += s.weight_of(c) * ((scores[c] - highest) - log_sum);
      part[thread] = all;
    });
    const T all = block.reduce(part, add);
    block.each([&](int thread) {
      if (thread != 0) return;
      const std::int64_t label = s.label(sample);
      stats.shift[sample] = highest;
      stats.log_sum[sample] = log_sum;
      losses[sample] =
          label < 0 ? T(0) : -s.keep * s.weight_of(label) * ((scores[label] - highest) - log_sum) - s.spread * all;
    });
  }
};

// d loss / d x_c = (keep w_t + spread sum w) p_c - spread w_c - [c = t] keep w_t, times the sample's gradient.
template <class T>
struct CrossEntropySlope {
  Samples<T> s;
  SampleGradient<T> gradient;
  Statistics<T> stats;
  T* out;
  const T* all_weights;  // the sum of the weights, or null: the number of classes
  DEVICE_ONLY void operator()(std::int64_t i) const {
    const auto [sample, c] = s.score(i);
    const std::int64_t label = s.label(sample);
    if (label < 0) {
      out[i] = T(0);
      return;
    }
    const T all = all_weights ? *all_weights : static_cast<T>(s.n);
    const T p = math::exp((stats.x[i] - stats.shift[sample]) - stats.log_sum[sample]);
    const T own = s.spread * s.weight_of(c) + (label == c ? s.keep * s.weight_of(c) : T(0));
    out[i] = gradient[sample] * ((s.keep * s.weight_of(label) + s.spread * all) * p - own);
  }
};

template <class T>
struct SumOfWeights {
  using Sum = T;
  const T* weight;
  T* out;
  DEVICE_ONLY Sum start() const { return 0; }
  DEVICE_ONLY void add(Sum& sum, std::int64_t at, std::int64_t, std::int64_t) const { sum += weight[at]; }
  DEVICE_ONLY Sum join(Sum a, Sum b) const { return a + b; }
  DEVICE_ONLY void finish(std::int64_t, Sum sum) const { *out = sum; }
};

constexpr std::int64_t kBlockFrom = 128;  // minimum number of classes for a block of threads

template <class T>
Statistics<T> statistics_at(const void* x, void* memory, const Samples<T>& s) {
  return {static_cast<const T*>(x), static_cast<T*>(memory), static_cast<T*>(memory) + s.count};
}

}  // namespace

void nll_loss(const void* y, const std::int64_t* target, const void* weight, void* out, const Rows& rows, DType dtype,
              const raw::NllOptions& options, double* total_weight, std::int64_t*) {
  for_float(dtype, [&]<class T>(T) {
    const Samples<T> s(target, weight, rows, options);
    const bool reduced = options.reduction != raw::Reduction::kNone;
    const Scratch scratch(reduced ? s.count * static_cast<std::int64_t>(sizeof(T)) : 0);
    T* const losses = reduced ? scratch.as<T>() : static_cast<T*>(out);
    launch_elements("nll_loss", s.count, NllLoss<T>{s, static_cast<const T*>(y), losses});
    launch_reduce("nll_loss", Rows{.n = s.count},
                  MeanOfLosses<T>{s, losses, static_cast<T*>(out), total_weight, options.reduction});
  });
}

void nll_loss_backward(const void* grad, const std::int64_t* target, const void* weight, void* out, const Rows& rows,
                       DType dtype, const raw::NllOptions& options, const double* total_weight) {
  for_float(dtype, [&]<class T>(T) {
    const Samples<T> s(target, weight, rows, options);
    launch_elements(
        "nll_loss backward", s.count * s.n,
        NllSlope<T>{s, {static_cast<const T*>(grad), total_weight, options.reduction}, static_cast<T*>(out)});
  });
}

void cross_entropy(const void* x, const std::int64_t* target, const void* weight, void* statistics, void* losses,
                   void* out, const Rows& rows, DType dtype, const raw::NllOptions& options, double* total_weight,
                   std::int64_t*) {
  for_float(dtype, [&]<class T>(T) {
    const Samples<T> s(target, weight, rows, options);
    const Statistics<T> stats = statistics_at(x, statistics, s);
    T* const each = static_cast<T*>(losses);
    if (s.inner == 1 && s.n >= kBlockFrom)
      launch_blocks("cross_entropy", s.count, CrossEntropyRow<T>{s, stats, each});
    else
      launch_elements("cross_entropy", s.count, CrossEntropy<T>{s, stats, each});
    launch_reduce("cross_entropy", Rows{.n = s.count},
                  MeanOfLosses<T>{s, each, static_cast<T*>(out), total_weight, options.reduction});
  });
}

void cross_entropy_backward(const void* grad, const void* x, const std::int64_t* target, const void* weight,
                            void* statistics, void* out, const Rows& rows, DType dtype, const raw::NllOptions& options,
                            const double* total_weight) {
  for_float(dtype, [&]<class T>(T) {
    const Samples<T> s(target, weight, rows, options);
    const Scratch all(weight ? sizeof(T) : 0);
    if (weight) launch_reduce("cross_entropy backward", Rows{.n = s.n}, SumOfWeights<T>{s.weight, all.as<T>()});
    launch_elements("cross_entropy backward", s.count * s.n,
                    CrossEntropySlope<T>{s,
                                         {static_cast<const T*>(grad), total_weight, options.reduction},
                                         statistics_at(x, statistics, s),
                                         static_cast<T*>(out),
                                         weight ? all.as<T>() : nullptr});
  });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
