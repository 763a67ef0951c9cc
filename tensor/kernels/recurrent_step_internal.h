// An element of a step of LSTM or GRU, for CPUs and GPUs: see tensor/ops/recurrent_steps_internal.h.
#pragma once

#include "lockstep/tensor/kernels/for_dtype_internal.h"
#include "lockstep/tensor/kernels/pointwise_internal.h"
#include "lockstep/tensor/ops/recurrent_steps_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

template <class T>
struct StepElements {
  std::int64_t n, index;
  const std::int64_t* lengths;
  const T *h, *c, *grad_h, *grad_by_next;
  T *next_h, *next_c, *kept, *of_input, *of_hidden, *carried_h, *carried_c;

  explicit StepElements(const raw::RecurrentStep& s)
      : n(s.hidden), index(s.index), lengths(s.lengths), h(as<T>(s.h)), c(as<T>(s.c)), grad_h(as<T>(s.grad_h)),
        grad_by_next(as<T>(s.grad_by_next)), next_h(as<T>(s.next_h)), next_c(as<T>(s.next_c)), kept(as<T>(s.kept)),
        of_input(as<T>(s.of_input)), of_hidden(as<T>(s.of_hidden)), carried_h(as<T>(s.carried_h)),
        carried_c(as<T>(s.carried_c)) {}

  HOST_DEVICE bool runs(std::int64_t row) const { return lengths == nullptr || index < lengths[row]; }
};

// Each has the element j of sequence `row`: a step, a step that keeps the state, and backward of both.
template <class T>
struct LstmElements : StepElements<T> {
  using S = StepElements<T>;
  using S::S;
  HOST_DEVICE void step(std::int64_t row, std::int64_t j) const {
    const std::int64_t n = S::n, at = row * n + j, first = 4 * row * n + j;
    const auto sum = [&](std::int64_t gate) { return S::of_input[first + gate * n] + S::of_hidden[first + gate * n]; };
    const T i = Sigmoid::value(sum(0)), f = Sigmoid::value(sum(1)), g = math::tanh(sum(2)), o = Sigmoid::value(sum(3));
    const T c = f * S::c[at] + i * g;
    S::kept[first] = i, S::kept[first + n] = f, S::kept[first + 2 * n] = g, S::kept[first + 3 * n] = o;
    S::next_c[at] = c;
    S::next_h[at] = o * math::tanh(c);
  }
  HOST_DEVICE void hold(std::int64_t row, std::int64_t j) const {
    const std::int64_t at = row * S::n + j;
    S::next_c[at] = S::c[at];
    S::next_h[at] = S::h[at];
  }
  HOST_DEVICE void step_backward(std::int64_t row, std::int64_t j) const {
    const std::int64_t n = S::n, at = row * n + j, first = 4 * row * n + j;
    const T i = S::kept[first], f = S::kept[first + n], g = S::kept[first + 2 * n], o = S::kept[first + 3 * n];
    const T by_h = S::grad_h[at] + S::grad_by_next[at] + S::carried_h[at], t = math::tanh(S::next_c[at]);
    const T by_c = S::carried_c[at] + by_h * o * (T(1) - t * t);
    S::of_input[first] = by_c * g * (i * (T(1) - i));
    S::of_input[first + n] = by_c * S::c[at] * (f * (T(1) - f));
    S::of_input[first + 2 * n] = by_c * i * (T(1) - g * g);
    S::of_input[first + 3 * n] = by_h * t * (o * (T(1) - o));
    S::carried_c[at] = by_c * f;
    S::carried_h[at] = T(0);
  }
  HOST_DEVICE void hold_backward(std::int64_t row, std::int64_t j) const {
    const std::int64_t at = row * S::n + j;
    S::carried_h[at] += S::grad_h[at] + S::grad_by_next[at];
    for (int gate = 0; gate < 4; ++gate) S::of_input[(4 * row + gate) * S::n + j] = T(0);
  }
};

template <class T>
struct GruElements : StepElements<T> {
  using S = StepElements<T>;
  using S::S;
  HOST_DEVICE void step(std::int64_t row, std::int64_t j) const {
    const std::int64_t n = S::n, at = row * n + j, first = 3 * row * n + j, keep = 4 * row * n + j;
    const T r = Sigmoid::value(S::of_input[first] + S::of_hidden[first]);
    const T z = Sigmoid::value(S::of_input[first + n] + S::of_hidden[first + n]);
    const T product = S::of_hidden[first + 2 * n], g = math::tanh(S::of_input[first + 2 * n] + r * product);
    S::kept[keep] = r, S::kept[keep + n] = z, S::kept[keep + 2 * n] = g, S::kept[keep + 3 * n] = product;
    S::next_h[at] = g + z * (S::h[at] - g);
  }
  HOST_DEVICE void hold(std::int64_t row, std::int64_t j) const { S::next_h[row * S::n + j] = S::h[row * S::n + j]; }
  HOST_DEVICE void step_backward(std::int64_t row, std::int64_t j) const {
    const std::int64_t n = S::n, at = row * n + j, first = 3 * row * n + j, keep = 4 * row * n + j;
    const T r = S::kept[keep], z = S::kept[keep + n], g = S::kept[keep + 2 * n], product = S::kept[keep + 3 * n];
    const T by_h = S::grad_h[at] + S::grad_by_next[at] + S::carried_h[at];
    const T by_n = by_h * (T(1) - z) * (T(1) - g * g), by_r = by_n * product * (r * (T(1) - r));
    const T by_z = by_h * (S::h[at] - g) * (z * (T(1) - z));
    S::of_input[first] = S::of_hidden[first] = by_r;
    S::of_input[first + n] = S::of_hidden[first + n] = by_z;
    S::of_input[first + 2 * n] = by_n;
    S::of_hidden[first + 2 * n] = by_n * r;
    S::carried_h[at] = by_h * z;
  }
  HOST_DEVICE void hold_backward(std::int64_t row, std::int64_t j) const {
    const std::int64_t at = row * S::n + j;
    S::carried_h[at] += S::grad_h[at] + S::grad_by_next[at];
    for (int gate = 0; gate < 3; ++gate) {
      const std::int64_t place = (3 * row + gate) * S::n + j;
      S::of_input[place] = S::of_hidden[place] = T(0);
    }
  }
};

// Calls function(elements of the step).
template <class F>
void for_step(const raw::RecurrentStep& s, DType dtype, F function) {
  for_float(dtype, [&]<class T>(T) { s.is_lstm ? function(LstmElements<T>(s)) : function(GruElements<T>(s)); });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
