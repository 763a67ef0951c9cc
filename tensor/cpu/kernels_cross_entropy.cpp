// Cross-entropy with class labels, from scores to loss and gradient. Rows of few classes process as many samples as a
// packet has lanes, one class at a time; long rows use packets along the classes. The choice depends on the shape
// alone.
#include "lockstep/tensor/level_internal.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/tensor/cpu/loops_internal.h"
#include "lockstep/tensor/cpu/packets_internal.h"
#include "lockstep/tensor/losses.h"
#include "lockstep/tensor/pointwise_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {
namespace {

constexpr std::int64_t kFewClasses = 64;

// The operands of one call: scores x (outer, n, inner), a label and two statistics for each of outer * inner samples.
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
  T weight_of(std::int64_t label) const { return weight ? weight[label] : T(1); }
  bool in_lanes() const { return rows.inner > 1 || rows.n <= kFewClasses; }
};

template <class T>
Samples<T> make_samples(const void* x, const std::int64_t* labels, const void* weight, void* statistics,
                        const Rows& rows, const raw::NllOptions& options) {
  T* stats = static_cast<T*>(statistics);
  return {static_cast<const T*>(x),
          labels,
          static_cast<const T*>(weight),
          stats,
          stats + rows.outer * rows.inner,
          rows,
          options.ignore_index,
          static_cast<T>(1 - options.label_smoothing),
          static_cast<T>(options.label_smoothing / static_cast<double>(rows.n))};
}

// Calls body(first, count) for groups of as many samples as a packet has lanes, on several threads if large.
template <class T, class F>
void for_groups(const Samples<T>& s, F body) {
  constexpr std::int64_t kLanes = kPacketSize<T>;
  const std::int64_t samples = s.count();
  const std::int64_t per_chunk =
      (std::max<std::int64_t>(kChunk / std::max<std::int64_t>(s.rows.n, 1), 1) + kLanes - 1) / kLanes * kLanes;
  const auto run = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; at += kLanes) body(at, std::min(end - at, kLanes));
  };
  if (samples * s.rows.n < kParallelFrom) return run(0, samples);
  for_chunks((samples + per_chunk - 1) / per_chunk,
             [&](std::int64_t chunk) { run(chunk * per_chunk, std::min(samples, (chunk + 1) * per_chunk)); });
}

// Class c of `count` samples, one a lane. Lanes past the end repeat the first sample.
template <class T>
struct Lanes {
  std::int64_t starts[kPacketSize<T>];

  Lanes(const Samples<T>& s, std::int64_t first, std::int64_t count) {
    for (std::int64_t j = 0; j < kPacketSize<T>; ++j) starts[j] = s.start(j < count ? first + j : first);
  }
  Packet<T> load(const Samples<T>& s, std::int64_t c) const {
    Packet<T> lanes;
    for (int j = 0; j < kPacketSize<T>; ++j) lanes[j] = s.x[starts[j] + c * s.rows.inner];
    return lanes;
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
    highest = (scores > highest).select(scores, highest);
  }
  Packet<T> total = Packet<T>::Zero();
  for (std::int64_t c = 0; c < s.rows.n; ++c) {
    const Packet<T> scores = c < kFewClasses ? load_packet(tile + c * kPacketSize<T>) : lanes.load(s, c);
    total += exp_packet<Packet<T>>(scores - highest);
  }
  const Packet<T> logs = total.log();
  for (int j = 0; j < count; ++j) {
    s.shift[first + j] = highest[j];
    s.log_sum[first + j] = logs[j];
  }
}

template <class T>
void statistics_of_row(const Samples<T>& s, std::int64_t sample) {
  const T* x = s.x + s.start(sample);
  constexpr int kSize = kPacketSize<T>;
  Packet<T> best = Packet<T>::Constant(-std::numeric_limits<T>::infinity());
  for (std::int64_t i = 0; i < s.rows.n; i += kSize) {
    const Packet<T> scores = i + kSize <= s.rows.n ? load_packet(x + i) : load_tail<T>(x + i, s.rows.n - i, x[0]);
    best = (scores > best).select(scores, best);
  }
  const T shift = best.maxCoeff();
  s.shift[sample] = shift;
  s.log_sum[sample] = static_cast<T>(
      std::log(sum_packets(x, s.rows.n, [shift](const Packet<T>& v) { return exp_packet<Packet<T>>(v - shift); })));
}

template <class T>
T loss_of(const Samples<T>& s, std::int64_t sample) {
  if (!s.counts(sample)) return 0;
  const T* x = s.x + s.start(sample);
  const auto log_probability = [&](std::int64_t c) {
    return (x[c * s.rows.inner] - s.shift[sample]) - s.log_sum[sample];
  };
  const std::int64_t label = s.labels[sample];
  T loss = -s.keep * s.weight_of(label) * log_probability(label);
  if (s.spread != 0) {
    T all = 0;
    for (std::int64_t c = 0; c < s.rows.n; ++c) all += s.weight_of(c) * log_probability(c);
    loss -= s.spread * all;
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
    const Packet<T> p = exp_packet<Packet<T>>((lanes.load(s, c) - shift) - log_sum);
    const Packet<T> slopes = total * p - share * s.weight_of(c);
    for (int j = 0; j < count; ++j) out[lanes.starts[j] + c * s.rows.inner] = slopes[j];
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
              [=](const Packet<T>& v) { return Packet<T>(total * exp_packet<Packet<T>>((v - shift) - log_sum)); });
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
      const std::int64_t label = target[sample];
      if (label == options.ignore_index) continue;
      if (label < 0 || label >= rows.n) return static_cast<void>(*bad = sample);
      counted += static_cast<double>(s.weight_of(label));
    }
    *total_weight = counted;
    T* each = static_cast<T*>(losses);
    for_groups(s, [&](std::int64_t first, std::int64_t count) {
      if (s.in_lanes()) statistics_in_lanes(s, first, count);
      for (std::int64_t sample = first; sample < first + count; ++sample) {
        if (!s.in_lanes()) statistics_of_row(s, sample);
        each[sample] = loss_of(s, sample);
      }
    });
    if (options.reduction == raw::Reduction::kNone) return;
    double total = 0;
    for (std::int64_t sample = 0; sample < s.count(); ++sample) total += static_cast<double>(each[sample]);
    *static_cast<T*>(out) = static_cast<T>(options.reduction == raw::Reduction::kMean ? total / counted : total);
  });
}

void cross_entropy_backward(const void* grad, const void* x, const std::int64_t* target, const void* weight,
                            void* statistics, void* out, const Rows& rows, DType dtype, const raw::NllOptions& options,
                            const double* total_weight) {
  for_float(dtype, [&]<class T>(T) {
    const Samples<T> s = make_samples<T>(x, target, weight, statistics, rows, options);
    const T* grads = static_cast<const T*>(grad);
    const T factor = options.reduction == raw::Reduction::kMean ? static_cast<T>(1 / *total_weight) : T(1);
    T all_weights = 0;
    for (std::int64_t c = 0; c < rows.n; ++c) all_weights += s.weight_of(c);
    for_groups(s, [&](std::int64_t first, std::int64_t count) {
      T g[kPacketSize<T>] = {};
      for (std::int64_t j = 0; j < count; ++j)
        g[j] = options.reduction == raw::Reduction::kNone ? grads[first + j] : *grads * factor;
      if (s.in_lanes()) return gradient_in_lanes(s, g, all_weights, static_cast<T*>(out), first, count);
      for (std::int64_t j = 0; j < count; ++j) gradient_of_row(s, g[j], all_weights, static_cast<T*>(out), first + j);
    });
  });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
