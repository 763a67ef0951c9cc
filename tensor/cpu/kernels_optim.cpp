// Optimizer steps: plain loops that the compiler vectorises. Every number is computed by single operations that round
// exactly (no contraction, sqrt and division included), so an element has the same bits in the vector loop and in its
// tail.
#include <cmath>

#include "lockstep/tensor/cpu/loops_internal.h"
#include "lockstep/tensor/kernels/optim_numbers_internal.h"
#include "lockstep/tensor/ops/optim_ops_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {
namespace {

// Calls function(std::bool_constant) so that a flag costs nothing inside the loop.
template <class F>
void with_flag(bool flag, F function) {
  if (flag)
    function(std::true_type{});
  else
    function(std::false_type{});
}

template <class T, bool kDecay>
void sgd_plain(T* __restrict p, const T* __restrict grad, std::int64_t count, const SgdNumbers<T> s) {
  for (std::int64_t i = 0; i < count; ++i) {
    T g = s.sign * grad[i];
    if constexpr (kDecay) g += s.decay * p[i];
    p[i] -= s.lr * g;
  }
}

template <class T, bool kDecay, bool kNesterov>
void sgd_momentum(T* __restrict p, const T* __restrict grad, T* __restrict buffer, std::int64_t count,
                  const SgdNumbers<T> s) {
  for (std::int64_t i = 0; i < count; ++i) {
    T g = s.sign * grad[i];
    if constexpr (kDecay) g += s.decay * p[i];
    const T velocity = s.momentum * buffer[i] + s.keep * g;
    buffer[i] = velocity;
    if constexpr (kNesterov)
      g += s.momentum * velocity;
    else
      g = velocity;
    p[i] -= s.lr * g;
  }
}

enum class Decay { kNone, kGradient, kParameter };

template <class T, Decay kDecay, bool kAmsgrad>
void adam(T* __restrict p, const T* __restrict grad, T* __restrict mean, T* __restrict square, T* __restrict largest,
          std::int64_t count, const AdamNumbers<T> n) {
  for (std::int64_t i = 0; i < count; ++i) {
    T g = grad[i], x = p[i];
    if constexpr (kDecay == Decay::kGradient) g += n.decay * x;
    if constexpr (kDecay == Decay::kParameter) x *= n.shrink;
    mean[i] = n.beta1 * mean[i] + n.rest1 * g;
    square[i] = n.beta2 * square[i] + n.rest2 * g * g;
    T scale = square[i];
    if constexpr (kAmsgrad) largest[i] = scale = largest[i] > scale ? largest[i] : scale;
    p[i] = x - n.rate * mean[i] / (std::sqrt(scale) / n.root + n.eps);
  }
}

template <class T, bool kDecay, bool kMomentum, bool kCentered>
void rmsprop(T* __restrict p, const T* __restrict grad, T* __restrict square, T* __restrict buffer, T* __restrict mean,
             std::int64_t count, const RmsPropNumbers<T> n) {
  for (std::int64_t i = 0; i < count; ++i) {
    T g = grad[i];
    if constexpr (kDecay) g += n.decay * p[i];
    square[i] = n.alpha * square[i] + n.rest * g * g;
    T variance = square[i];
    if constexpr (kCentered) {
      mean[i] = n.alpha * mean[i] + n.rest * g;
      variance -= mean[i] * mean[i];
    }
    T update = g / (std::sqrt(variance) + n.eps);
    if constexpr (kMomentum) buffer[i] = update = n.momentum * buffer[i] + update;
    p[i] -= n.lr * update;
  }
}

template <class T>
void lion(T* __restrict p, const T* __restrict grad, T* __restrict mean, std::int64_t count, const LionNumbers<T> n) {
  for (std::int64_t i = 0; i < count; ++i) {
    const T update = n.beta1 * mean[i] + n.rest1 * grad[i];
    p[i] = n.shrink * p[i] - n.lr * static_cast<T>((update > 0) - (update < 0));
    mean[i] = n.beta2 * mean[i] + n.rest2 * grad[i];
  }
}

}  // namespace

void sgd_step(std::span<const raw::SteppedMemory> tensors, DType dtype, const raw::SgdStep& step) {
  for_float(dtype, [&]<class T>(T) {
    const SgdNumbers<T> numbers(step);
    for (const raw::SteppedMemory& one : tensors) {
      T *p = as<T>(one.parameter), *b = as<T>(one.state[0]);
      const T* g = as<T>(one.grad);
      with_flag(step.weight_decay != 0, [&](auto decays) {
        for_parts(one.count, 1, [&](std::int64_t at, std::int64_t end) {
          const std::int64_t n = end - at;
          if (!b) return sgd_plain<T, decays>(p + at, g + at, n, numbers);
          with_flag(step.nesterov,
                    [&](auto nesterov) { sgd_momentum<T, decays, nesterov>(p + at, g + at, b + at, n, numbers); });
        });
      });
    }
  });
}

void adam_step(std::span<const raw::SteppedMemory> tensors, DType dtype, const raw::AdamStep& step) {
  for_float(dtype, [&]<class T>(T) {
    const AdamNumbers<T> numbers(step);
    for (const raw::SteppedMemory& one : tensors) {
      T *p = as<T>(one.parameter), *m = as<T>(one.state[0]), *s = as<T>(one.state[1]), *l = as<T>(one.state[2]);
      const T* g = as<T>(one.grad);
      with_flag(l != nullptr, [&](auto amsgrad) {
        for_parts(one.count, 1, [&](std::int64_t at, std::int64_t end) {
          const std::int64_t n = end - at;
          T* const largest = l ? l + at : l;
          if (step.weight_decay == 0)
            adam<T, Decay::kNone, amsgrad>(p + at, g + at, m + at, s + at, largest, n, numbers);
          else if (step.decoupled)
            adam<T, Decay::kParameter, amsgrad>(p + at, g + at, m + at, s + at, largest, n, numbers);
          else
            adam<T, Decay::kGradient, amsgrad>(p + at, g + at, m + at, s + at, largest, n, numbers);
        });
      });
    }
  });
}

void rmsprop_step(std::span<const raw::SteppedMemory> tensors, DType dtype, const raw::RmsPropStep& step) {
  for_float(dtype, [&]<class T>(T) {
    const RmsPropNumbers<T> numbers(step);
    for (const raw::SteppedMemory& one : tensors) {
      T *p = as<T>(one.parameter), *s = as<T>(one.state[0]), *b = as<T>(one.state[1]), *m = as<T>(one.state[2]);
      const T* g = as<T>(one.grad);
      const auto run = [&](auto decays, auto momentum, auto centered) {
        for_parts(one.count, 1, [&](std::int64_t at, std::int64_t end) {
          rmsprop<T, decays, momentum, centered>(p + at, g + at, s + at, b ? b + at : b, m ? m + at : m, end - at,
                                                 numbers);
        });
      };
      with_flag(step.weight_decay != 0, [&](auto decays) {
        with_flag(b != nullptr, [&](auto momentum) {
          with_flag(m != nullptr, [&](auto centered) { run(decays, momentum, centered); });
        });
      });
    }
  });
}

void lion_step(std::span<const raw::SteppedMemory> tensors, DType dtype, const raw::LionStep& step) {
  for_float(dtype, [&]<class T>(T) {
    const LionNumbers<T> numbers(step);
    for (const raw::SteppedMemory& one : tensors) {
      T *p = as<T>(one.parameter), *m = as<T>(one.state[0]);
      const T* g = as<T>(one.grad);
      for_parts(one.count, 1,
                [&](std::int64_t at, std::int64_t end) { lion<T>(p + at, g + at, m + at, end - at, numbers); });
    }
  });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
