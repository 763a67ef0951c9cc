#include "lockstep/nn/layers/recurrent.h"

#include <algorithm>
#include <string>
#include <utility>

#include "lockstep/autograd/ops/creation.h"
#include "lockstep/autograd/ops/functions.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/nn/layers/layer_parts_internal.h"

namespace lockstep::nn {
namespace {

// State k of (layers * directions, batch, hidden), or zeros.
Tensor start_of(const char* name, const Tensor& all, std::int64_t k, std::int64_t count, const Shape& shape,
                const Tensor& like) {
  if (!all.defined()) return zeros(shape, like.options());
  const Shape expected{count, shape[0], shape[1]};
  LOCKSTEP_CHECK(all.shape() == expected, "recurrent layer: the state {} is {}, expected shape {}", name, describe(all),
                 expected.to_string());
  return all.select(0, k);
}

}  // namespace

Recurrent::Recurrent(std::int64_t in, std::int64_t hidden, std::int64_t gates, const RecurrentOptions& options)
    : hidden_(hidden), in_(in), gates_(gates), options_(options) {
  LOCKSTEP_CHECK(in >= 1 && hidden >= 1 && options.num_layers >= 1,
                 "recurrent layer: in {}, hidden {}, num_layers {}; expected at least 1", in, hidden,
                 options.num_layers);
  LOCKSTEP_CHECK(options.dropout >= 0 && options.dropout <= 1, "recurrent layer: dropout is {}, expected 0 to 1",
                 options.dropout);
  const std::int64_t directions = options.bidirectional ? 2 : 1, rows = gates * hidden;
  for (std::int64_t k = 0; k < options.num_layers * directions; ++k) {
    const std::int64_t width = k < directions ? in : hidden * directions;
    const std::string end = "_l" + std::to_string(k / directions) + (k % directions == 1 ? "_reverse" : "");
    const auto add_uniform = [&](const char* name, const Shape& shape, bool exists) -> Parameter& {
      return add_parameter(name + end, exists ? uniform_by_fan_in(shape, hidden) : Tensor());
    };
    Parameter& weight_ih = add_uniform("weight_ih", {rows, width}, true);
    Parameter& weight_hh = add_uniform("weight_hh", {rows, hidden}, true);
    Parameter& bias_ih = add_uniform("bias_ih", {rows}, options.bias);
    cells_.push_back({weight_ih, weight_hh, bias_ih, add_uniform("bias_hh", {rows}, options.bias)});
  }
}

// One layer in one direction over x (time, batch, in). Returns h of every step, in the order of x.
Tensor Recurrent::run(const Tensor& x, const Cell& cell, bool reverse, RecurrentState& state) const {
  const std::vector<Tensor> steps = split(linear(x, cell.weight_ih, cell.bias_ih), 1);
  std::vector<Tensor> outputs(steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::size_t t = reverse ? steps.size() - 1 - i : i;
    state = next(steps[t].squeeze(0), linear(state.h, cell.weight_hh, cell.bias_hh), state);
    outputs[t] = state.h;
  }
  return stack(outputs);
}

RecurrentOutput Recurrent::forward_state(const Tensor& x, const RecurrentState& start) const {
  const bool has_batch = x.dim() == 3;
  LOCKSTEP_CHECK(
      (has_batch || x.dim() == 2) && x.size(-1) == in_ && x.size(options_.batch_first && has_batch ? 1 : 0) > 0,
      "{}: x is {}, expected (time, batch, {}), with .batch_first (batch, time, {}), or (time, {})", type_name(),
      describe(x), in_, in_, in_);
  const bool turned = has_batch && options_.batch_first;
  const auto with_batch = [&](const Tensor& t) { return t.defined() && !has_batch ? t.unsqueeze(1) : t; };
  const Tensor h = with_batch(start.h), c = with_batch(start.c);
  Tensor y = turned ? x.transpose(0, 1) : with_batch(x);
  const Shape shape{y.size(1), hidden_};
  const std::int64_t directions = options_.bidirectional ? 2 : 1;
  const auto count = static_cast<std::int64_t>(cells_.size());
  std::vector<Tensor> last_h, last_c;
  for (std::int64_t first = 0; first < count; first += directions) {
    std::vector<Tensor> outputs;
    for (std::int64_t k = first; k < first + directions; ++k) {
      RecurrentState state = {.h = start_of("h", h, k, count, shape, x)};
      if (gates_ == 4) state.c = start_of("c", c, k, count, shape, x);
      outputs.push_back(run(y, cells_[static_cast<std::size_t>(k)], k > first, state));
      last_h.push_back(state.h);
      if (state.c.defined()) last_c.push_back(state.c);
    }
    y = directions == 1 ? outputs[0] : cat(outputs, 2);
    if (first + directions < count) y = dropout(y, options_.dropout, is_training());
  }
  const auto joined = [&](const std::vector<Tensor>& states) {
    if (states.empty()) return Tensor();
    return has_batch ? stack(states) : stack(states).squeeze(1);
  };
  return {.y = turned      ? y.transpose(0, 1)
               : has_batch ? y
                           : y.squeeze(1),
          .state = {.h = joined(last_h), .c = joined(last_c)}};
}

RecurrentState LSTM::next(const Tensor& of_input, const Tensor& of_hidden, const RecurrentState& state) const {
  const Tensor gates = of_input + of_hidden;
  const Tensor input_forget = sigmoid(gates.narrow(1, 0, 2 * hidden_));
  const Tensor c = input_forget.narrow(1, hidden_, hidden_) * state.c +
                   input_forget.narrow(1, 0, hidden_) * tanh(gates.narrow(1, 2 * hidden_, hidden_));
  return {.h = sigmoid(gates.narrow(1, 3 * hidden_, hidden_)) * tanh(c), .c = c};
}

RecurrentState GRU::next(const Tensor& of_input, const Tensor& of_hidden, const RecurrentState& state) const {
  const Tensor reset_update = sigmoid(of_input.narrow(1, 0, 2 * hidden_) + of_hidden.narrow(1, 0, 2 * hidden_));
  const Tensor update = reset_update.narrow(1, hidden_, hidden_);
  const Tensor n = tanh(of_input.narrow(1, 2 * hidden_, hidden_) +
                        reset_update.narrow(1, 0, hidden_) * of_hidden.narrow(1, 2 * hidden_, hidden_));
  return {.h = n + update * (state.h - n), .c = {}};
}

}  // namespace lockstep::nn
