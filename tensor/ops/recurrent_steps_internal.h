// LSTM and GRU: one step after its products, which is a kernel, and the raw operations for all steps.
#pragma once

#include <cstdint>

#include "lockstep/tensor/tensor.h"

namespace lockstep::raw {

// Contiguous memory. Gates, in order: LSTM i f g o, GRU r z n. A sequence whose length is at most `index` keeps its
// state.
struct RecurrentStep {
  bool is_lstm;
  std::int64_t batch, hidden;
  const std::int64_t* lengths;  // (batch), or null: all sequences run
  std::int64_t index;           // of the step
  const void *h, *c;            // the state before (batch, hidden); c of LSTM only
  void *next_h, *next_c;        // the state after; may be that before
  void* kept;  // (batch, 4 hidden), for backward: the gates, and of GRU also n's part of the product with h
  // Forward: both products (batch, gates hidden). Backward: their gradients, for LSTM in one place.
  void *of_input = nullptr, *of_hidden = nullptr;
  // Backward: gradients (batch, hidden) of this step's h, by its use in y and by the next step's product; and those of
  // the state by other ways than the product with h, first of the state after, then of the one before.
  const void *grad_h = nullptr, *grad_by_next = nullptr;
  void *carried_h = nullptr, *carried_c = nullptr;
};

// All steps, with what backward needs.
struct RecurrentRun {
  bool reverse;
  Tensor lengths;   // (batch), or undefined
  Tensor states;    // (time + 1, batch, hidden): h before and after each step, in the order of x
  Tensor c_states;  // the same of c; undefined for GRU. If nothing is kept for backward, (1, batch, hidden), in place
  Tensor kept;      // (time, batch, 4 hidden), or (1, batch, 4 hidden)

  std::int64_t time() const { return states.size(0) - 1; }
  std::int64_t step(std::int64_t i) const { return reverse ? time() - 1 - i : i; }  // the i-th step's index in x
  std::int64_t before(std::int64_t t) const { return reverse ? t + 1 : t; }         // places in `states`
  std::int64_t after(std::int64_t t) const { return reverse ? t : t + 1; }
  Tensor states_before() const;  // (time, batch, hidden), views
  Tensor states_after() const;
  Tensor last_c() const;  // a copy
};
struct RecurrentOperands {
  const Tensor &x, &h, &c;  // (time, batch, in), (batch, hidden); c is undefined for GRU
};
struct RecurrentParameters {
  const Tensor &of_input, &of_hidden;
};
// The operands are not empty, and f32 or f64. `keeps`: for backward.
RecurrentRun recurrent_steps(const RecurrentOperands& in, const RecurrentParameters& weights,
                             const RecurrentParameters& biases, const Tensor& lengths, bool reverse, bool keeps);

struct RecurrentGradients {
  Tensor of_inputs, of_hiddens;  // (time, batch, gates hidden): of the products of all steps; for LSTM the same tensor
  Tensor h, c;                   // of the first state; h is undefined unless `needs_h`
};
// grad_h (time, batch, hidden) and grad_c (batch, hidden), of the last c, may be undefined.
RecurrentGradients recurrent_steps_backward(const RecurrentRun& run, const Tensor& weight_hh, const Tensor& grad_h,
                                            const Tensor& grad_c, bool needs_h);

}  // namespace lockstep::raw
