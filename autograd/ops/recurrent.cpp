// Recurrent steps, composed of public operations.
#include "lockstep/autograd/ops/recurrent_internal.h"

#include <vector>

#include "lockstep/autograd/ops/creation.h"
#include "lockstep/autograd/ops/operations_internal.h"

namespace lockstep {

std::int64_t recurrent_gates(RecurrentKind kind) {
  return kind == RecurrentKind::kLSTM ? 4 : kind == RecurrentKind::kGRU ? 3 : 1;
}

RecurrentPair recurrent_step(RecurrentKind kind, const Tensor& of_input, const Tensor& of_hidden,
                             const RecurrentPair& state) {
  const std::int64_t hidden = state.h.size(-1);
  const auto gate = [hidden](const Tensor& t, std::int64_t first, std::int64_t count = 1) {
    return t.narrow(-1, first * hidden, count * hidden);
  };
  if (kind == RecurrentKind::kLSTM) {
    const Tensor gates = of_input + of_hidden, input_forget = sigmoid(gate(gates, 0, 2));
    const Tensor c = gate(input_forget, 1) * state.c + gate(input_forget, 0) * tanh(gate(gates, 2));
    return {.h = sigmoid(gate(gates, 3)) * tanh(c), .c = c};
  }
  if (kind == RecurrentKind::kGRU) {
    const Tensor reset_update = sigmoid(gate(of_input, 0, 2) + gate(of_hidden, 0, 2));
    const Tensor n = tanh(gate(of_input, 2) + gate(reset_update, 0) * gate(of_hidden, 2));
    return {.h = n + gate(reset_update, 1) * (state.h - n), .c = {}};
  }
  const Tensor sum = of_input + of_hidden;
  return {.h = kind == RecurrentKind::kTanh ? tanh(sum) : relu(sum), .c = {}};
}

Tensor steps_within(const Tensor& lengths, std::int64_t time) {
  return (arange(time, {.device = lengths.device()}).unsqueeze(1) < lengths).unsqueeze(-1);
}

RecurrentSteps recurrent_steps(RecurrentKind kind, const Tensor& x, const RecurrentPair& start,
                               const RecurrentWeights& weights, const Tensor& lengths, bool reverse) {
  const std::vector<Tensor> of_inputs = split(linear(x, weights.weight_ih, weights.bias_ih), 1);
  const Tensor within = lengths.defined() ? steps_within(lengths, x.size(0)) : Tensor();
  std::vector<Tensor> states(of_inputs.size());
  RecurrentPair state = start;
  for (std::size_t i = 0; i < states.size(); ++i) {
    const std::size_t t = reverse ? states.size() - 1 - i : i;
    RecurrentPair next =
        recurrent_step(kind, of_inputs[t].squeeze(0), linear(state.h, weights.weight_hh, weights.bias_hh), state);
    if (within.defined()) {
      const Tensor runs = within.select(0, static_cast<std::int64_t>(t));
      next.h = where(runs, next.h, state.h);
      if (next.c.defined()) next.c = where(runs, next.c, state.c);
    }
    state = next;
    states[t] = state.h;
  }
  return {.h = stack(states), .last = state};
}

}  // namespace lockstep
