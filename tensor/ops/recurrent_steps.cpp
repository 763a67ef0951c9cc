// All steps of LSTM and GRU: a product with h and a kernel for each.
#include "lockstep/tensor/ops/recurrent_steps_internal.h"
#include "lockstep/tensor/ops/wrappers_internal.h"

namespace lockstep::raw {

namespace {

void* row(const Tensor& all, std::int64_t place) {
  return all.size(0) == 1 ? all.raw_data() : select(all, 0, place).raw_data();
}

// Step t without its products.
RecurrentStep memory_of(const RecurrentRun& run, std::int64_t t) {
  const bool is_lstm = run.c_states.defined();
  return {.is_lstm = is_lstm,
          .batch = run.states.size(1),
          .hidden = run.states.size(2),
          .lengths = static_cast<const std::int64_t*>(data_or_null(run.lengths)),
          .index = t,
          .h = row(run.states, run.before(t)),
          .c = is_lstm ? row(run.c_states, run.before(t)) : nullptr,
          .next_h = row(run.states, run.after(t)),
          .next_c = is_lstm ? row(run.c_states, run.after(t)) : nullptr,
          .kept = row(run.kept, t)};
}

}  // namespace

Tensor RecurrentRun::states_before() const { return slice(states, 0, before(0), before(0) + time(), 1); }
Tensor RecurrentRun::states_after() const { return slice(states, 0, after(0), after(0) + time(), 1); }
Tensor RecurrentRun::last_c() const {
  return clone(select(c_states, 0, c_states.size(0) == 1 ? 0 : after(step(time() - 1))));
}

RecurrentRun recurrent_steps(const RecurrentOperands& in, const RecurrentParameters& weights,
                             const RecurrentParameters& biases, const Tensor& lengths, bool reverse, bool keeps) {
  const std::int64_t time = in.x.size(0), hidden = in.h.size(1), first = reverse ? time : 0;
  const auto room = [&](std::int64_t rows, std::int64_t width) {
    return empty({rows, in.x.size(1), width}, in.x.options());
  };
  RecurrentRun run{
      .reverse = reverse,
      .lengths = lengths.defined() ? clone(lengths) : lengths,  // the caller may change its tensor before backward
      .states = room(time + 1, hidden),
      .c_states = in.c.defined() ? room(keeps ? time + 1 : 1, hidden) : Tensor(),
      .kept = room(keeps ? time : 1, 4 * hidden)};
  copy(in.h, select(run.states, 0, first));
  if (in.c.defined()) copy(in.c, select(run.c_states, 0, keeps ? first : 0));
  const Tensor of_inputs = linear(in.x, weights.of_input, biases.of_input);
  for (std::int64_t i = 0; i < time; ++i) {
    const std::int64_t t = run.step(i);
    const Tensor of_hidden = linear(select(run.states, 0, run.before(t)), weights.of_hidden, biases.of_hidden);
    RecurrentStep step = memory_of(run, t);
    step.of_input = row(of_inputs, t), step.of_hidden = of_hidden.raw_data();
    kernels(in.x.device()).recurrent_step(step, in.x.dtype());
  }
  return run;
}

RecurrentGradients recurrent_steps_backward(const RecurrentRun& run, const Tensor& weight_hh, const Tensor& grad_h,
                                            const Tensor& grad_c, bool needs_h) {
  const std::int64_t time = run.time(), batch = run.states.size(1);
  const Shape state = {batch, run.states.size(2)}, gates = {time, batch, weight_hh.size(0)};
  const TensorOptions options = run.states.options();
  const bool is_lstm = run.c_states.defined();
  const Tensor by_h = grad_h.defined() ? contiguous(grad_h) : zeros(run.states_after().shape(), options);
  const Tensor of_inputs = empty(gates, options), of_hiddens = is_lstm ? of_inputs : empty(gates, options);
  const Tensor carried_h = zeros(state, options), by_next = zeros(state, options);
  Tensor carried_c;
  if (is_lstm) carried_c = grad_c.defined() ? clone(grad_c) : zeros(state, options);
  for (std::int64_t i = time - 1; i >= 0; --i) {
    const std::int64_t t = run.step(i);
    RecurrentStep step = memory_of(run, t);
    const Tensor of_hidden = select(of_hiddens, 0, t);
    step.of_input = row(of_inputs, t), step.of_hidden = of_hidden.raw_data();
    step.grad_h = row(by_h, t), step.grad_by_next = by_next.raw_data();
    step.carried_h = carried_h.raw_data(), step.carried_c = data_or_null(carried_c);
    kernels(by_h.device()).recurrent_step_backward(step, by_h.dtype());
    if (i > 0 || needs_h) matmul_out(of_hidden, weight_hh, by_next);
  }
  if (needs_h) add_(by_next, carried_h);
  return {.of_inputs = of_inputs, .of_hiddens = of_hiddens, .h = needs_h ? by_next : Tensor(), .c = carried_c};
}

}  // namespace lockstep::raw
