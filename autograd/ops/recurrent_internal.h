// Recurrent layers and cells: the pointwise part of a step, and all steps of a layer in one direction.
#pragma once

#include <cstdint>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

enum class RecurrentKind : std::uint8_t { kTanh, kReLU, kLSTM, kGRU };

// The number of pre-activations for each element of h.
std::int64_t recurrent_gates(RecurrentKind kind);

struct RecurrentPair {
  Tensor h, c;  // (batch, hidden); c of kLSTM only
};
// weight_ih (gates hidden, in), weight_hh (gates hidden, hidden); both biases (gates hidden), or undefined.
struct RecurrentWeights {
  Tensor weight_ih, weight_hh, bias_ih, bias_hh;
};

// The state after a step from `state`, from both products with their biases (batch, gates hidden).
RecurrentPair recurrent_step(RecurrentKind kind, const Tensor& of_input, const Tensor& of_hidden,
                             const RecurrentPair& state);

struct RecurrentSteps {
  Tensor h;  // (time, batch, hidden), in the order of x
  RecurrentPair last;
};
// All steps of x (time, batch, in), from the last one if `reverse`. `lengths` (batch) is undefined, or the state of
// sequence b stays as it is in the steps from lengths[b] on.
RecurrentSteps recurrent_steps(RecurrentKind kind, const Tensor& x, const RecurrentPair& start,
                               const RecurrentWeights& weights, const Tensor& lengths, bool reverse);

// (time, batch, 1), bool: true in the steps of a sequence, false after its end.
Tensor steps_within(const Tensor& lengths, std::int64_t time);

}  // namespace lockstep
