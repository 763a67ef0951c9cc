// Losses of an element: one pass for the value, one for the gradient. The order of sums depends on the shape alone.
#include "lockstep/tensor/kernels/level_internal.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "lockstep/tensor/cpu/loops_internal.h"
#include "lockstep/tensor/cpu/packets_internal.h"
#include "lockstep/tensor/cpu/softmax_internal.h"
#include "lockstep/tensor/ops/losses.h"

namespace lockstep::LOCKSTEP_KERNELS {
namespace {

template <class T>
Packet<T> log1p_packet(const Packet<T>& x) {
  Packet<T> out;
  for (int i = 0; i < kPacketSize<T>; ++i) out[i] = math::log1p(x[i]);
  return out;
}

// A loss of packets x, y (the target) and w (pos_weight, or 1): `value` and `derivative` with respect to x.
template <class T>
struct Bce {
  using P = Packet<T>;
  static constexpr bool kProbabilities = true;  // every x must be in [0, 1]
  // The logarithms are clamped to at least -100, and x (1 - x) to at least 1e-12f, as in PyTorch: 0 and 1 have finite
  // losses and gradients.
  static P value(const P& x, const P& y, const P&) {
    const P log_x = log_packet(x).max(T(-100)), log_rest = log1p_packet<T>(-x).max(T(-100));
    return (y - T(1)) * log_rest - y * log_x;
  }
  static P derivative(const P& x, const P& y, const P&) { return (x - y) / ((T(1) - x) * x).max(T(1e-12f)); }
};

template <class T>
struct BceWithLogits {
  using P = Packet<T>;
  static P value(const P& x, const P& y, const P& w) {
    const P decay = exp_up_to_0<T>(-x.abs());  // never overflows
    return (T(1) - y) * x + (T(1) + (w - T(1)) * y) * (log1p_packet<T>(decay) + (-x).max(T(0)));
  }
  static P derivative(const P& x, const P& y, const P& w) {
    const P decay = exp_up_to_0<T>(-x.abs());
    const P sigmoid = exp_up_to_0<T>(x.min(T(0))) / (T(1) + decay);
    return (w * y + (T(1) - y)) * sigmoid - w * y;
  }
};

template <class T>
struct Mse {
  using P = Packet<T>;
  static P value(const P& x, const P& y, const P&) { return (x - y) * (x - y); }
  static P derivative(const P& x, const P& y, const P&) { return T(2) * (x - y); }
};

template <class T>
struct L1 {
  using P = Packet<T>;
  static P value(const P& x, const P& y, const P&) { return (x - y).abs(); }
  static P derivative(const P& x, const P& y, const P&) {
    P out;
    for (int i = 0; i < kPacketSize<T>; ++i) {
      const T sign = static_cast<T>(x[i] > y[i]) - static_cast<T>(x[i] < y[i]);
      out[i] = sign == T(0) ? (x[i] - y[i]) * T(0) : sign;  // 0 where equal, NaN for NaN
    }
    return out;
  }
};

// delta (|x - y| - delta / 2), or (x - y)^2 / 2 where |x - y| is below delta.
template <class T>
struct Huber {
  using P = Packet<T>;
  T delta;

  P value(const P& x, const P& y, const P& w) const {
    const P slope = derivative(x, y, w);
    return slope * ((x - y) - slope * T(0.5));
  }
  P derivative(const P& x, const P& y, const P&) const {
    return (x - y).max(-delta).min(delta);  // NaN stays
  }
};

template <class T, class F>
void with_loss(const raw::PointwiseLoss& loss, F function) {
  switch (loss.kind) {
    case raw::PointwiseLoss::kBce:
      return function(Bce<T>{});
    case raw::PointwiseLoss::kBceWithLogits:
      return function(BceWithLogits<T>{});
    case raw::PointwiseLoss::kMse:
      return function(Mse<T>{});
    case raw::PointwiseLoss::kL1:
      return function(L1<T>{});
    case raw::PointwiseLoss::kHuber:
      return function(Huber<T>{static_cast<T>(loss.delta)});
  }
}

// The operands of one packet; past the end x and target are 0.5, which every loss accepts.
template <class T>
struct Operands {
  const T *x, *target, *weight;
  std::int64_t count;

  // Calls body(at, length, x, target, weight) for every packet from `begin` to `end`.
  template <class F>
  void for_packets(std::int64_t begin, std::int64_t end, F body) const {
    constexpr std::int64_t kSize = kPacketSize<T>;
    std::int64_t at = begin;
    for (; at + kSize <= end; at += kSize)
      body(at, kSize, load_packet(x + at), load_packet(target + at),
           weight ? load_packet(weight + at) : Packet<T>(Packet<T>::Ones()));
    if (const std::int64_t rest = end - at; rest > 0)
      body(at, rest, load_tail(x + at, rest, T(0.5)), load_tail(target + at, rest, T(0.5)),
           weight ? load_tail(weight + at, rest, T(1)) : Packet<T>(Packet<T>::Ones()));
  }
};

template <class T>
bool are_probabilities(const Packet<T>& x) {
  return (x >= T(0) && x <= T(1)).all();  // false for NaN
}

// Writes the sum, block by block in f64, or each `out[i]`. Returns false if an x should be a probability and is not.
template <class T, class Loss>
bool run_loss(const Operands<T>& in, T* out, bool reduce, double scale, Loss loss) {
  // Returns the sum of a block; `valid` becomes false if an x should be a probability and is not.
  const auto sum_of_block = [&](std::int64_t block, bool& valid) {
    Packet<T> sums = Packet<T>::Zero();
    const std::int64_t begin = block * kShortBlock<T>, end = std::min(begin + kShortBlock<T>, in.count);
    in.for_packets(
        begin, end,
        [&](std::int64_t at, std::int64_t length, const Packet<T>& x, const Packet<T>& y, const Packet<T>& w) {
          if constexpr (requires { Loss::kProbabilities; }) valid = valid && are_probabilities<T>(x);
          Packet<T> value = loss.value(x, y, w);
          if (!reduce) return store_part<T>(out + at, value, length);
          if (length < kPacketSize<T>) value = load_tail<T>(value.data(), length, T(0));
          sums += value;
        });
    return static_cast<double>(add_lanes<T>(sums));
  };
  double total = 0;
  bool valid = true;
  const std::int64_t blocks = (in.count + kShortBlock<T> - 1) / kShortBlock<T>;
  if (in.count < kParallelFrom) {
    for (std::int64_t block = 0; block < blocks; ++block) total += sum_of_block(block, valid);
  } else {
    std::vector<double> sums(static_cast<std::size_t>(blocks));
    std::atomic<bool> all_valid = true;
    for_units(blocks, kShortBlock<T>, [&](std::int64_t block) {
      bool is_valid = true;
      sums[static_cast<std::size_t>(block)] = sum_of_block(block, is_valid);
      if (!is_valid) all_valid.store(false, std::memory_order_relaxed);
    });
    for (const double sum : sums) total += sum;
    valid = all_valid;
  }
  if (reduce) *out = static_cast<T>(total * scale);
  return valid;
}

}  // namespace

void pointwise_loss(const raw::PointwiseLoss& loss, const void* x, const void* target, const void* pos_weight,
                    void* out, std::int64_t count, DType dtype, raw::Reduction reduction, double scale,
                    std::int64_t* bad) {
  for_float(dtype, [&]<class T>(T) {
    const Operands<T> in{as<T>(x), as<T>(target), as<T>(pos_weight), count};
    with_loss<T>(loss, [&](auto kind) {
      if (run_loss(in, as<T>(out), reduction != raw::Reduction::kNone, scale, kind)) return;
      for (*bad = 0; in.x[*bad] >= T(0) && in.x[*bad] <= T(1);) ++*bad;
    });
  });
}

void pointwise_loss_backward(const raw::PointwiseLoss& loss, const void* grad, const void* x, const void* target,
                             const void* pos_weight, void* out, std::int64_t count, DType dtype,
                             raw::Reduction reduction, double scale) {
  for_float(dtype, [&]<class T>(T) {
    const Operands<T> in{as<T>(x), as<T>(target), as<T>(pos_weight), count};
    const T* grads = as<T>(grad);
    const bool one_grad = reduction != raw::Reduction::kNone;
    const T factor = one_grad ? static_cast<T>(*grads * static_cast<T>(scale)) : T(1);
    with_loss<T>(loss, [&](auto kind) {
      in.for_packets(
          0, count,
          [&](std::int64_t at, std::int64_t length, const Packet<T>& xs, const Packet<T>& y, const Packet<T>& w) {
            const Packet<T> g = one_grad ? Packet<T>(Packet<T>::Constant(factor)) : load_part(grads + at, length, T(0));
            store_part<T>(as<T>(out) + at, g * kind.derivative(xs, y, w), length);
          });
    });
  });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
