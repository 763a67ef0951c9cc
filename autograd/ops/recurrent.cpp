// Recurrent steps: with a kernel for the pointwise part of LSTM and GRU, or composed of public operations.
#include "lockstep/autograd/ops/recurrent_internal.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "lockstep/autograd/autograd.h"
#include "lockstep/autograd/ops/autocast_internal.h"
#include "lockstep/autograd/ops/creation.h"
#include "lockstep/autograd/ops/operations_internal.h"
#include "lockstep/tensor/ops/recurrent_steps_internal.h"

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

namespace {

RecurrentSteps composed_steps(RecurrentKind kind, const Tensor& x, const RecurrentPair& start,
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

// All steps of LSTM or GRU with a kernel for each, as one operation. Its inputs; c is undefined for GRU.
enum Input { kX, kH, kC, kWeightIh, kWeightHh, kBiasIh, kBiasHh, kInputs };
using StepInputs = std::array<Tensor, kInputs>;

// The gradients of all inputs that need one, from those of all h (time, batch, hidden) and of the last c.
Gradients steps_gradients(const raw::RecurrentRun& run, const StepInputs& in, const Tensor& grad_h,
                          const Tensor& grad_c, const Needs& needs) {
  const auto [of_inputs, of_hiddens, h, c] =
      raw::recurrent_steps_backward(run, in[kWeightHh], grad_h, grad_c, needs[kH]);
  Tensor flat_x, flat_h, flat;
  const auto columns = [&](const Tensor& t) { return as_rows(t, flat).transpose(0, 1); };
  const Tensor before = run.states_before();
  return {needs[kX] ? raw::matmul(of_inputs, in[kWeightIh]) : Tensor(),
          needs[kH] ? h : Tensor(),
          needs[kC] ? c : Tensor(),
          needs[kWeightIh] ? matmul(columns(of_inputs), as_rows(in[kX], flat_x), needs.view(kWeightIh)) : Tensor(),
          needs[kWeightHh] ? matmul(columns(of_hiddens), as_rows(before, flat_h), needs.view(kWeightHh)) : Tensor(),
          needs[kBiasIh] ? sum(as_rows(of_inputs, flat), {0}, false, needs.view(kBiasIh)) : Tensor(),
          needs[kBiasHh] ? sum(as_rows(of_hiddens, flat), {0}, false, needs.view(kBiasHh)) : Tensor()};
}

// The same in public operations, for second derivatives: runs the composed steps again.
Gradients composed_gradients(RecurrentKind kind, const raw::RecurrentRun& run, const StepInputs& in,
                             const autograd::Tensors& grads, const Needs& needs) {
  StepInputs own;  // an input may depend on another one: gradients end at views
  std::vector<Tensor> wanted, results, upstream;
  for (std::size_t i = 0; i < in.size(); ++i) {
    own[i] = in[i].defined() ? in[i].view(in[i].shape()) : Tensor();
    if (own[i].defined() && needs[i]) wanted.push_back(own[i]);
  }
  const RecurrentSteps again =
      composed_steps(kind, own[kX], {.h = own[kH], .c = own[kC]},
                     {own[kWeightIh], own[kWeightHh], own[kBiasIh], own[kBiasHh]}, run.lengths, run.reverse);
  for (std::size_t k = 0; k < grads.size(); ++k) {
    if (!grads[k].defined()) continue;
    results.push_back(k == 0 ? again.h : again.last.c);
    upstream.push_back(grads[k]);
  }
  const std::vector<Tensor> found =
      autograd::grad(results, wanted, {.grad_outputs = upstream, .create_graph = true, .allow_unused = true});
  Gradients gradients;
  for (std::size_t i = 0, next = 0; i < in.size(); ++i)
    gradients.push_back(own[i].defined() && needs[i] ? found[next++] : Tensor());
  return gradients;
}

RecurrentSteps fused_steps(RecurrentKind kind, const StepInputs& in, const Tensor& lengths, bool reverse) {
  const bool records =
      std::any_of(in.begin(), in.end(), [](const Tensor& t) { return t.defined() && requires_grad(t); });
  raw::RecurrentRun run = raw::recurrent_steps({in[kX], in[kH], in[kC]}, {in[kWeightIh], in[kWeightHh]},
                                               {in[kBiasIh], in[kBiasHh]}, lengths, reverse, records);
  std::vector<Tensor> outputs = {run.states_after()};
  if (in[kC].defined()) outputs.push_back(run.last_c());
  std::array<Saved, kInputs> saved;
  for (std::size_t i = 0; i < in.size(); ++i) saved[i] = Saved(in[i], records);
  outputs = autograd::record_all(
      kind == RecurrentKind::kLSTM ? "lstm" : "gru", std::move(outputs), std::vector<Tensor>(in.begin(), in.end()),
      [kind, saved, states = Saved(run.states, records), run = std::move(run)](autograd::Tensors& grads,
                                                                               const Needs& needs) {
        StepInputs inputs;
        for (std::size_t i = 0; i < inputs.size(); ++i) inputs[i] = *saved[i];
        if (autograd::grad_mode()) return composed_gradients(kind, run, inputs, grads, needs);
        (void)*states;  // throws if a result was changed in place
        return steps_gradients(run, inputs, grads[0], grads.size() > 1 ? grads[1] : Tensor(), needs);
      });
  return {.h = outputs[0],
          .last = {.h = outputs[0].select(0, reverse ? 0 : outputs[0].size(0) - 1),
                   .c = in[kC].defined() ? outputs[1] : Tensor()}};
}

}  // namespace

RecurrentSteps recurrent_steps(RecurrentKind kind, const Tensor& x, const RecurrentPair& start,
                               const RecurrentWeights& weights, const Tensor& lengths, bool reverse) {
  const StepInputs in = {x, start.h, start.c, weights.weight_ih, weights.weight_hh, weights.bias_ih, weights.bias_hh};
  const auto fits = [&](const Tensor& t) {
    return !t.defined() || (t.dtype() == x.dtype() && t.device() == x.device() && t.numel() > 0);
  };
  const bool fused = (kind == RecurrentKind::kLSTM || kind == RecurrentKind::kGRU) && !is_half(x.dtype()) &&
                     !narrows(x, weights.weight_ih) && std::all_of(in.begin(), in.end(), fits);
  return fused ? fused_steps(kind, in, lengths, reverse) : composed_steps(kind, x, start, weights, lengths, reverse);
}

}  // namespace lockstep
