// Losses of class labels. Cross-entropy goes from scores to loss and gradient: rows of few classes process as many
// samples as a packet has lanes, one class at a time; long rows use packets along the classes. The choice depends on
// the shape alone.
#include "lockstep/tensor/kernels/level_internal.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "lockstep/tensor/cpu/loops_internal.h"
#include "lockstep/tensor/cpu/packets_internal.h"
#include "lockstep/tensor/cpu/softmax_internal.h"
#include "lockstep/tensor/ops/losses.h"

namespace lockstep::LOCKSTEP_KERNELS {
namespace {

constexpr std::int64_t kFewClasses = 64;

// The operands of one call: scores x (outer, n, inner), a label and two statistics for each of outer * inner samples.
// The negative log-likelihood has log probabilities in place of scores, and no statistics.
template <class T>
struct Samples {
  const T* x;
  const std::int64_t* labels;
  const T* weight;     // weight of each class, or null for 1
  T *shift, *log_sum;  // log softmax of a score: (x - shift) - log_sum
  Rows rows;
  std::int64_t ignored;
  T keep, spread;  // the label's weight, and the smoothing weight of every class

  std::int64_t count() const { return rows.outer * rows.inner; }
  std::int64_t start(std::int64_t sample) const {
    return rows.inner == 1 ? sample * rows.n : sample / rows.inner * rows.n * rows.inner + sample % rows.inner;
  }
  bool counts(std::int64_t sample) const { return labels[sample] != ignored; }
  bool exists(std::int64_t sample) const { return labels[sample] >= 0 && labels[sample] < rows.n; }  // its class
  T weight_of(std::int64_t label) const { return weight ? weight[label] : T(1); }
  bool in_lanes() const { return rows.inner > 1 || rows.n <= kFewClasses; }
};

template <class T>
Samples<T> make_samples(const void* x, const std::int64_t* labels, const void* weight, void* statistics,
                        const Rows& rows, const raw::NllOptions& options) {
  T* stats = as<T>(statistics);
  return {as<T>(x),
          labels,
          as<T>(weight),
          stats,
          stats ? stats + rows.outer * rows.inner : nullptr,
          rows,
          options.ignore_index,
          static_cast<T>(1 - options.label_smoothing),
          static_cast<T>(options.label_smoothing / static_cast<double>(rows.n))};
}

// Calls body(first, count) for groups of as many samples as a packet has lanes, on several threads if large.
template <class T, class F>
void for_groups(const Samples<T>& s, F body) {
  constexpr std::int64_t kLanes = kPacketSize<T>;
  for_units((s.count() + kLanes - 1) / kLanes, kLanes * s.rows.n,
            [&](std::int64_t group) { body(group * kLanes, std::min(s.count() - group * kLanes, kLanes)); });
}

// Class c of `count` samples, one a lane. Lanes past the end repeat the first sample.
template <class T>
struct Lanes {
  std::int64_t starts[kPacketSize<T>];
  bool adjacent = true;  // in memory

  Lanes(const Samples<T>& s, std::int64_t first, std::int64_t count) {
    for (std::int64_t j = 0; j < kPacketSize<T>; ++j) {
      starts[j] = s.start(j < count ? first + j : first);
      adjacent = adjacent && starts[j] == starts[0] + j;
    }
  }
  Packet<T> load(const Samples<T>& s, std::int64_t c) const {
    if (adjacent) return load_packet(s.x + starts[0] + c * s.rows.inner);
    Packet<T> lanes;
    for (int j = 0; j < kPacketSize<T>; ++j) lanes[j] = s.x[starts[j] + c * s.rows.inner];
    return lanes;
  }
  // The first `count` lanes to the places that they are loaded from, in `out`.
  void store(const Samples<T>& s, T* out, std::int64_t c, const Packet<T>& lanes, std::int64_t count) const {
    if (adjacent) return store_packet<T>(out + starts[0] + c * s.rows.inner, lanes);
    for (int j = 0; j < count; ++j) out[starts[j] + c * s.rows.inner] = lanes[j];
  }
};

template <class T>
void statistics_in_lanes(const Samples<T>& s, std::int64_t first, std::int64_t count) {
  const Lanes<T> lanes(s, first, count);
  alignas(64) T tile[kFewClasses * kPacketSize<T>];  // scores of the first classes, to gather them only once
  Packet<T> highest = Packet<T>::Constant(-std::numeric_limits<T>::infinity());
  for (std::int64_t c = 0; c < s.rows.n; ++c) {
    const Packet<T> scores = lanes.load(s, c);
    if (c < kFewClasses) store_packet<T>(tile + c * kPacketSize<T>, scores);
    highest = scores.max(highest);  // ignores a NaN, which makes the sum NaN
  }
  Packet<T> total = Packet<T>::Zero();  // of a few classes
  double totals[kPacketSize<T>] = {};   // of those before them
  for (std::int64_t c = 0; c < s.rows.n; ++c) {
    if (c > 0 && c % kFewClasses == 0) {
      for (int j = 0; j < kPacketSize<T>; ++j) totals[j] += static_cast<double>(std::exchange(total[j], T(0)));
    }
    const Packet<T> scores = c < kFewClasses ? load_packet(tile + c * kPacketSize<T>) : lanes.load(s, c);
    total += exp_up_to_0<T>(scores - highest);
  }
  for (int j = 0; j < kPacketSize<T>; ++j) total[j] = static_cast<T>(totals[j] + static_cast<double>(total[j]));
  const Packet<T> logs = total.log();
  for (int j = 0; j < count; ++j) {
    s.shift[first + j] = highest[j];
    s.log_sum[first + j] = logs[j];
  }
}

template <class T>
void statistics_of_row(const Samples<T>& s, std::int64_t sample) {
  const T* x = s.x + s.start(sample);
  const T shift = largest(x, s.rows.n);
  T terms[kSumBlock];
  double total = 0;
  for (std::int64_t begin = 0; begin < s.rows.n; begin += kSumBlock) {
    const std::int64_t length = std::min(kSumBlock, s.rows.n - begin);
    shifted_exp(x + begin, terms, length, shift);
    total += sum_packets(terms, length, [](const Packet<T>& v) { return v; });
  }
  s.shift[sample] = shift;
  s.log_sum[sample] = static_cast<T>(std::log(total));
}

template <class T, class F>
T loss_of(const Samples<T>& s, std::int64_t sample, F log_probability) {
  if (!s.counts(sample)) return 0;
  const std::int64_t label = s.labels[sample];
  T loss = -s.keep * s.weight_of(label) * log_probability(label);
  if (s.spread != 0) {
    double all = 0;
    for (std::int64_t c = 0; c < s.rows.n; ++c) all += static_cast<double>(s.weight_of(c) * log_probability(c));
    loss -= s.spread * static_cast<T>(all);
  }
  return loss;
}

// d loss / d x_c = (keep w_t + spread sum w) p_c - spread w_c - [c = t] keep w_t, times the sample's gradient g.
template <class T>
void gradient_in_lanes(const Samples<T>& s, const T* g, T all_weights, T* out, std::int64_t first, std::int64_t count) {
  const Lanes<T> lanes(s, first, count);
  Packet<T> shift, log_sum, total, share;
  for (int j = 0; j < kPacketSize<T>; ++j) {
    const std::int64_t sample = j < count ? first + j : first;
    const bool counts = s.counts(sample);
    shift[j] = s.shift[sample];
    log_sum[j] = s.log_sum[sample];
    share[j] = counts ? g[j] * s.spread : T(0);
    total[j] = counts ? g[j] * (s.keep * s.weight_of(s.labels[sample]) + s.spread * all_weights) : T(0);
  }
  for (std::int64_t c = 0; c < s.rows.n; ++c) {
    const Packet<T> p = exp_up_to_0<T>((lanes.load(s, c) - shift) - log_sum);
    const Packet<T> slopes = total * p - share * s.weight_of(c);
    lanes.store(s, out, c, slopes, count);
  }
  for (int j = 0; j < count; ++j) {
    const std::int64_t label = s.labels[first + j];
    if (label != s.ignored) out[lanes.starts[j] + label * s.rows.inner] -= g[j] * s.keep * s.weight_of(label);
  }
}

template <class T>
void gradient_of_row(const Samples<T>& s, T g, T all_weights, T* out, std::int64_t sample) {
  const std::int64_t label = s.labels[sample];
  T* slopes = out + s.start(sample);
  if (!s.counts(sample)) {
    std::fill(slopes, slopes + s.rows.n, T(0));
    return;
  }
  const T shift = s.shift[sample], log_sum = s.log_sum[sample];
  const T total = g * (s.keep * s.weight_of(label) + s.spread * all_weights);
  map_packets(s.rows.n, slopes, s.x + s.start(sample),
              [=](const Packet<T>& v) { return Packet<T>(total * exp_up_to_0<T>((v - shift) - log_sum)); });
  if (s.spread != 0) {
    for (std::int64_t c = 0; c < s.rows.n; ++c) slopes[c] -= g * s.spread * s.weight_of(c);
  }
  slopes[label] -= g * s.keep * s.weight_of(label);
}

}  // namespace

void cross_entropy(const void* x, const std::int64_t* target, const void* weight, void* statistics, void* losses,
                   void* out, const Rows& rows, DType dtype, const raw::NllOptions& options, double* total_weight,
                   std::int64_t* bad) {
  for_float(dtype, [&]<class T>(T) {
    const Samples<T> s = make_samples<T>(x, target, weight, statistics, rows, options);
    double counted = 0;
    for (std::int64_t sample = 0; sample < s.count(); ++sample) {
      if (!s.counts(sample)) continue;
      if (!s.exists(sample)) return static_cast<void>(*bad = sample);
      counted += static_cast<double>(s.weight_of(target[sample]));
    }
    *total_weight = counted;
    T* each = as<T>(losses);
    for_groups(s, [&](std::int64_t first, std::int64_t count) {
      if (s.in_lanes()) statistics_in_lanes(s, first, count);
      for (std::int64_t sample = first; sample < first + count; ++sample) {
        if (!s.in_lanes()) statistics_of_row(s, sample);
        const T* scores = s.x + s.start(sample);
        each[sample] = loss_of(
            s, sample, [&](std::int64_t c) { return (scores[c * rows.inner] - s.shift[sample]) - s.log_sum[sample]; });
      }
    });
    if (options.reduction == raw::Reduction::kNone) return;
    double total = 0;
    for (std::int64_t sample = 0; sample < s.count(); ++sample) total += static_cast<double>(each[sample]);
    *as<T>(out) = static_cast<T>(options.reduction == raw::Reduction::kMean ? total / counted : total);
  });
}

void cross_entropy_backward(const void* grad, const void* x, const std::int64_t* target, const void* weight,
                            void* statistics, void* out, const Rows& rows, DType dtype, const raw::NllOptions& options,
                            const double* total_weight) {
  for_float(dtype, [&]<class T>(T) {
    const Samples<T> s = make_samples<T>(x, target, weight, statistics, rows, options);
    const T* grads = as<T>(grad);
    const T factor = options.reduction == raw::Reduction::kMean ? static_cast<T>(1 / *total_weight) : T(1);
    double sum_of_weights = 0;
    for (std::int64_t c = 0; c < rows.n; ++c) sum_of_weights += static_cast<double>(s.weight_of(c));
    const T all_weights = static_cast<T>(sum_of_weights);
    for_groups(s, [&](std::int64_t first, std::int64_t count) {
      T g[kPacketSize<T>] = {};
      for (std::int64_t j = 0; j < count; ++j)
        g[j] = options.reduction == raw::Reduction::kNone ? grads[first + j] : *grads * factor;
      if (s.in_lanes()) return gradient_in_lanes(s, g, all_weights, as<T>(out), first, count);
      for (std::int64_t j = 0; j < count; ++j) gradient_of_row(s, g[j], all_weights, as<T>(out), first + j);
    });
  });
}

void nll_loss(const void* y, const std::int64_t* target, const void* weight, void* out, const Rows& rows, DType dtype,
              const raw::NllOptions& options, double* total_weight, std::int64_t* bad) {
  for_float(dtype, [&]<class T>(T) {
    const Samples<T> s = make_samples<T>(y, target, weight, nullptr, rows, options);
    double total = 0, counted = 0;
    for (std::int64_t sample = 0; sample < s.count(); ++sample) {
      if (s.counts(sample)) {
        if (!s.exists(sample)) return static_cast<void>(*bad = sample);
        counted += static_cast<double>(s.weight_of(target[sample]));
      }
      const T* scores = s.x + s.start(sample);
      const T loss = loss_of(s, sample, [&](std::int64_t c) { return scores[c * rows.inner]; });
      if (options.reduction == raw::Reduction::kNone)
        as<T>(out)[sample] = loss;
      else
        total += static_cast<double>(loss);
    }
    *total_weight = counted;
    if (options.reduction == raw::Reduction::kNone) return;
    *as<T>(out) = static_cast<T>(options.reduction == raw::Reduction::kMean ? total / counted : total);
  });
}

void nll_loss_backward(const void* grad, const std::int64_t* target, const void* weight, void* out, const Rows& rows,
                       DType dtype, const raw::NllOptions& options, const double* total_weight) {
  for_float(dtype, [&]<class T>(T) {
    const Samples<T> s = make_samples<T>(nullptr, target, weight, nullptr, rows, options);
    const bool one_grad = options.reduction != raw::Reduction::kNone;
    const T factor = options.reduction == raw::Reduction::kMean ? static_cast<T>(1 / *total_weight) : T(1);
    const T spread = s.spread;
    for (std::int64_t sample = 0; sample < s.count(); ++sample) {
      T* slopes = as<T>(out) + s.start(sample);
      const std::int64_t label = target[sample];
      const bool counts = s.counts(sample);
      const T g = counts ? as<T>(grad)[one_grad ? 0 : sample] * factor : T(0);
      for (std::int64_t c = 0; c < rows.n; ++c)
        slopes[c * rows.inner] = counts && spread != 0 ? -g * spread * s.weight_of(c) : T(0);
      if (counts) slopes[label * rows.inner] -= g * s.keep * s.weight_of(label);
    }
  });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
