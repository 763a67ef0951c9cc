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
#include "lockstep/tensor/kernels/kernels_internal.h"
#include "lockstep/tensor/ops/recurrent_step_internal.h"

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

struct FusedSteps {
  RecurrentKind kind;
  bool reverse;
  Tensor lengths;
  Tensor states;    // (time + 1, batch, hidden): h before and after each step, in the order of x
  Tensor c_states;  // the same of c; (1, batch, hidden), in place, if nothing is kept for backward; undefined for GRU
  Tensor kept;      // (time, batch, 4 hidden); or (1, batch, 4 hidden)

  std::int64_t time() const { return states.size(0) - 1; }
  std::int64_t step(std::int64_t i) const { return reverse ? time() - 1 - i : i; }  // the i-th step's index in x
  std::int64_t before(std::int64_t t) const { return reverse ? t + 1 : t; }         // places in `states`
  std::int64_t after(std::int64_t t) const { return reverse ? t : t + 1; }
  void* row(const Tensor& all, std::int64_t place) const {
    return all.size(0) == 1 ? all.raw_data() : raw::select(all, 0, place).raw_data();
  }
  // Step t without its products.
  raw::RecurrentStep memory(std::int64_t t) const {
    const bool is_lstm = kind == RecurrentKind::kLSTM;
    return {.is_lstm = is_lstm,
            .batch = states.size(1),
            .hidden = states.size(2),
            .lengths = lengths.defined() ? static_cast<const std::int64_t*>(lengths.raw_data()) : nullptr,
            .index = t,
            .h = row(states, before(t)),
            .c = is_lstm ? row(c_states, before(t)) : nullptr,
            .next_h = row(states, after(t)),
            .next_c = is_lstm ? row(c_states, after(t)) : nullptr,
            .kept = row(kept, t)};
  }
};

FusedSteps run_steps(RecurrentKind kind, const StepInputs& in, const Tensor& lengths, bool reverse, bool records) {
  const Tensor &x = in[kX], &h = in[kH], &c = in[kC];
  const std::int64_t time = x.size(0), batch = x.size(1), hidden = h.size(-1);
  const auto room = [&](std::int64_t rows, std::int64_t width) {
    return raw::empty({rows, batch, width}, x.options());
  };
  FusedSteps out{.kind = kind,
                 .reverse = reverse,
                 .lengths = lengths.defined() ? raw::contiguous(lengths) : lengths,
                 .states = room(time + 1, hidden),
                 .c_states = c.defined() ? room(records ? time + 1 : 1, hidden) : Tensor(),
                 .kept = room(records ? time : 1, 4 * hidden)};
  const std::int64_t first = reverse ? time : 0;
  raw::copy(h, raw::select(out.states, 0, first));
  if (c.defined()) raw::copy(c, raw::select(out.c_states, 0, records ? first : 0));
  const Tensor of_inputs = raw::linear(x, in[kWeightIh], in[kBiasIh]);
  const KernelTable& table = kernels(x.device());
  for (std::int64_t i = 0; i < time; ++i) {
    const std::int64_t t = out.step(i);
    const Tensor of_hidden = raw::linear(raw::select(out.states, 0, out.before(t)), in[kWeightHh], in[kBiasHh]);
    raw::RecurrentStep step = out.memory(t);
    step.of_input = raw::select(of_inputs, 0, t).raw_data(), step.of_hidden = of_hidden.raw_data();
    table.recurrent_step(step, x.dtype());
  }
  return out;
}

// The gradients of all inputs that need one, from those of all h (time, batch, hidden) and of the last c.
Gradients steps_backward(const FusedSteps& steps, const StepInputs& in, const Tensor& grad_h, const Tensor& grad_c,
                         const Needs& needs) {
  const Tensor& h = in[kH];
  const std::int64_t time = steps.time(), gates = in[kWeightHh].size(0);
  const bool is_lstm = in[kC].defined();
  const Tensor by_h =
      grad_h.defined() ? raw::contiguous(grad_h) : raw::zeros({time, h.size(0), h.size(1)}, h.options());
  const Tensor by_inputs = raw::empty({time, h.size(0), gates}, h.options());
  const Tensor by_hiddens = is_lstm ? by_inputs : raw::empty(by_inputs.shape(), h.options());
  const Tensor carried_h = raw::zeros(h.shape(), h.options());
  const Tensor carried_c = !is_lstm           ? Tensor()
                           : grad_c.defined() ? raw::clone(grad_c)
                                              : raw::zeros(h.shape(), h.options());
  Tensor by_next = raw::zeros(h.shape(), h.options());
  const KernelTable& table = kernels(h.device());
  for (std::int64_t i = time - 1; i >= 0; --i) {
    const std::int64_t t = steps.step(i);
    raw::RecurrentStep step = steps.memory(t);
    const Tensor by_hidden = raw::select(by_hiddens, 0, t);
    step.of_input = raw::select(by_inputs, 0, t).raw_data(), step.of_hidden = by_hidden.raw_data();
    step.grad_h = raw::select(by_h, 0, t).raw_data(), step.grad_by_next = by_next.raw_data();
    step.carried_h = carried_h.raw_data(), step.carried_c = is_lstm ? carried_c.raw_data() : nullptr;
    table.recurrent_step_backward(step, h.dtype());
    if (i > 0 || needs[kH]) raw::matmul_out(by_hidden, in[kWeightHh], by_next);
  }
  if (needs[kH]) raw::add_(by_next, carried_h);
  Tensor flat_x, flat_h, flat;
  const auto columns = [&](const Tensor& t) { return as_rows(t, flat).transpose(0, 1); };
  const Tensor states = raw::slice(steps.states, 0, steps.before(0), steps.before(0) + time, 1);
  return {needs[kX] ? raw::matmul(by_inputs, in[kWeightIh]) : Tensor(),
          needs[kH] ? by_next : Tensor(),
          needs[kC] ? carried_c : Tensor(),
          needs[kWeightIh] ? matmul(columns(by_inputs), as_rows(in[kX], flat_x), needs.view(kWeightIh)) : Tensor(),
          needs[kWeightHh] ? matmul(columns(by_hiddens), as_rows(states, flat_h), needs.view(kWeightHh)) : Tensor(),
          needs[kBiasIh] ? sum(as_rows(by_inputs, flat), {0}, false, needs.view(kBiasIh)) : Tensor(),
          needs[kBiasHh] ? sum(as_rows(by_hiddens, flat), {0}, false, needs.view(kBiasHh)) : Tensor()};
}

// The same in public operations, for second derivatives: runs the composed steps again.
Gradients composed_backward(const FusedSteps& steps, const StepInputs& in, const autograd::Tensors& grads,
                            const Needs& needs) {
  StepInputs own;  // an input may depend on another one: gradients end at views
  std::vector<Tensor> wanted, results, upstream;
  for (std::size_t i = 0; i < in.size(); ++i) {
    own[i] = in[i].defined() ? in[i].view(in[i].shape()) : Tensor();
    if (own[i].defined() && needs[i]) wanted.push_back(own[i]);
  }
  const RecurrentSteps again =
      composed_steps(steps.kind, own[kX], {.h = own[kH], .c = own[kC]},
                     {own[kWeightIh], own[kWeightHh], own[kBiasIh], own[kBiasHh]}, steps.lengths, steps.reverse);
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
  FusedSteps steps = run_steps(kind, in, lengths, reverse, records);
  const std::int64_t last = steps.after(steps.step(steps.time() - 1));
  std::vector<Tensor> outputs = {raw::slice(steps.states, 0, steps.after(0), steps.after(0) + steps.time(), 1)};
  if (in[kC].defined()) outputs.push_back(raw::clone(raw::select(steps.c_states, 0, records ? last : 0)));
  std::array<Saved, kInputs> saved;
  for (std::size_t i = 0; i < in.size(); ++i) saved[i] = Saved(in[i], records);
  outputs = autograd::record_all(
      kind == RecurrentKind::kLSTM ? "lstm" : "gru", std::move(outputs), std::vector<Tensor>(in.begin(), in.end()),
      [saved, h = Saved(steps.states, records), steps = std::move(steps)](autograd::Tensors& grads,
                                                                          const Needs& needs) {
        StepInputs inputs;
        for (std::size_t i = 0; i < inputs.size(); ++i) inputs[i] = *saved[i];
        if (autograd::grad_mode()) return composed_backward(steps, inputs, grads, needs);
        (void)*h;
        return steps_backward(steps, inputs, grads[0], grads.size() > 1 ? grads[1] : Tensor(), needs);
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
