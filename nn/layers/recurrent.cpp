#include "lockstep/nn/layers/recurrent.h"

#include <string>

#include "lockstep/autograd/ops/creation.h"
#include "lockstep/autograd/ops/functions.h"
#include "lockstep/autograd/ops/recurrent_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/nn/layers/layer_parts_internal.h"

namespace lockstep::nn {
namespace {

RecurrentKind kind_of(RNNNonlinearity nonlinearity) {
  return nonlinearity == RNNNonlinearity::kTanh ? RecurrentKind::kTanh : RecurrentKind::kReLU;
}

// The state `all` of the expected shape, or zeros.
Tensor state_or_zeros(const std::string& layer, const char* name, const Tensor& all, const Shape& expected,
                      const Tensor& like) {
  if (!all.defined()) return zeros(expected, like.options());
  LOCKSTEP_CHECK(all.shape() == expected, "{}: the state {} is {}, expected shape {}", layer, name, describe(all),
                 expected.to_string());
  return all;
}

void require_lengths(const std::string& layer, const Tensor& lengths, const Tensor& x, std::int64_t time,
                     std::int64_t batch) {
  LOCKSTEP_CHECK(lengths.dtype() == kInt64 && lengths.shape() == Shape{batch} && lengths.device() == x.device(),
                 "{}: lengths is {}, expected ({}) i64 on the device of x, which is {}", layer, describe(lengths),
                 batch, describe(x));
  const std::vector<std::int64_t> values = lengths.to_vector<std::int64_t>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    LOCKSTEP_CHECK(values[i] >= 1 && values[i] <= time,
                   "{}: lengths[{}] is {}, expected 1 to {}, the steps of x; leave out sequences without steps", layer,
                   i, values[i], time);
  }
}

}  // namespace

Recurrent::Recurrent(std::int64_t in, std::int64_t hidden, RecurrentKind kind, const RecurrentOptions& options)
    : in_(in), hidden_(hidden), kind_(kind), options_(options) {
  LOCKSTEP_CHECK(in >= 1 && hidden >= 1 && options.num_layers >= 1,
                 "recurrent layer: in {}, hidden {}, num_layers {}; expected at least 1", in, hidden,
                 options.num_layers);
  LOCKSTEP_CHECK(options.dropout >= 0 && options.dropout <= 1, "recurrent layer: dropout is {}, expected 0 to 1",
                 options.dropout);
  LOCKSTEP_CHECK(options.batch_first.has_value(),
                 "recurrent layer: .batch_first is not given; pass .batch_first = true if x is (batch, time, {0}), or "
                 ".batch_first = false, PyTorch's default, if x is (time, batch, {0})",
                 in);
  const std::int64_t directions = options.bidirectional ? 2 : 1, rows = recurrent_gates(kind) * hidden;
  for (std::int64_t k = 0; k < options.num_layers * directions; ++k) {
    const std::int64_t width = k < directions ? in : hidden * directions;
    const std::string end = "_l" + std::to_string(k / directions) + (k % directions == 1 ? "_reverse" : "");
    const auto add_uniform = [&](const char* name, const Shape& shape, bool exists) -> Parameter& {
      return add_parameter(name + end, exists ? uniform_by_fan_in(shape, hidden) : Tensor());
    };
    Parameter& weight_ih = add_uniform("weight_ih", {rows, width}, true);
    Parameter& weight_hh = add_uniform("weight_hh", {rows, hidden}, true);
    Parameter& bias_ih = add_uniform("bias_ih", {rows}, options.bias);
    weights_.push_back({weight_ih, weight_hh, bias_ih, add_uniform("bias_hh", {rows}, options.bias)});
  }
}

RecurrentOutput Recurrent::forward_state(const Tensor& x, const RecurrentState& start,
                                         const SequenceOptions& sequence) const {
  const bool has_batch = x.dim() == 3, turned = has_batch && *options_.batch_first;
  LOCKSTEP_CHECK((has_batch || x.dim() == 2) && x.size(-1) == in_ && x.size(turned ? 1 : 0) > 0,
                 "{}: x is {}, expected ({}, {}), or (time, {}) without batch", type_name(), describe(x),
                 *options_.batch_first ? "batch, time" : "time, batch", in_, in_);
  const auto with_batch = [&](const Tensor& t) { return t.defined() && !has_batch ? t.unsqueeze(1) : t; };
  Tensor y = turned ? x.transpose(0, 1).contiguous() : with_batch(x), within;
  const std::int64_t time = y.size(0), batch = y.size(1), directions = options_.bidirectional ? 2 : 1;
  if (sequence.lengths.defined()) {
    require_lengths(type_name(), sequence.lengths, x, time, batch);
    within = steps_within(sequence.lengths, time);
  }
  const auto cut = [&](const Tensor& t) { return within.defined() ? where(within, t, 0) : t; };
  y = cut(y);  // also NaN after a sequence's end has no effect
  const auto count = static_cast<std::int64_t>(weights_.size());
  const Shape shape{count, batch, hidden_};
  const Tensor h = state_or_zeros(type_name(), "h", with_batch(start.h), shape, x);
  const bool has_c = kind_ == RecurrentKind::kLSTM;
  const Tensor c = has_c ? state_or_zeros(type_name(), "c", with_batch(start.c), shape, x) : Tensor();
  std::vector<Tensor> last_h, last_c;
  for (std::int64_t first = 0; first < count; first += directions) {
    std::vector<Tensor> outputs;
    for (std::int64_t k = first; k < first + directions; ++k) {
      const Weights& of = weights_[static_cast<std::size_t>(k)];
      const RecurrentPair state{.h = h.select(0, k), .c = has_c ? c.select(0, k) : Tensor()};
      const RecurrentSteps steps = recurrent_steps(
          kind_, y, state, {of.weight_ih, of.weight_hh, of.bias_ih, of.bias_hh}, sequence.lengths, k > first);
      outputs.push_back(cut(steps.h));
      last_h.push_back(steps.last.h);
      if (has_c) last_c.push_back(steps.last.c);
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

LSTM::LSTM(std::int64_t in, std::int64_t hidden, const LSTMOptions& options)
    : Recurrent(in, hidden, RecurrentKind::kLSTM, options) {}

GRU::GRU(std::int64_t in, std::int64_t hidden, const GRUOptions& options)
    : Recurrent(in, hidden, RecurrentKind::kGRU, options) {}

RNN::RNN(std::int64_t in, std::int64_t hidden, const RNNOptions& options)
    : Recurrent(in, hidden, kind_of(options.nonlinearity),
                {.num_layers = options.num_layers,
                 .bias = options.bias,
                 .batch_first = options.batch_first,
                 .dropout = options.dropout,
                 .bidirectional = options.bidirectional}) {}

namespace {

std::int64_t check_cell(std::int64_t in, std::int64_t hidden) {
  LOCKSTEP_CHECK(in >= 1 && hidden >= 1, "recurrent cell: in {}, hidden {}; expected at least 1", in, hidden);
  return in;
}

}  // namespace

RecurrentCell::RecurrentCell(std::int64_t in, std::int64_t hidden, RecurrentKind kind, bool bias)
    : weight_ih(add_parameter("weight_ih",
                              uniform_by_fan_in({recurrent_gates(kind) * hidden, check_cell(in, hidden)}, hidden))),
      weight_hh(add_parameter("weight_hh", uniform_by_fan_in({recurrent_gates(kind) * hidden, hidden}, hidden))),
      bias_ih(add_parameter("bias_ih", bias ? uniform_by_fan_in({recurrent_gates(kind) * hidden}, hidden) : Tensor())),
      bias_hh(add_parameter("bias_hh", bias ? uniform_by_fan_in({recurrent_gates(kind) * hidden}, hidden) : Tensor())),
      in_(in), hidden_(hidden), kind_(kind) {}

RecurrentState RecurrentCell::forward_state(const Tensor& x, const RecurrentState& start) const {
  LOCKSTEP_CHECK((x.dim() == 1 || x.dim() == 2) && x.size(-1) == in_, "{}: x is {}, expected (batch, {}) or ({})",
                 type_name(), describe(x), in_, in_);
  const Shape shape = x.dim() == 2 ? Shape{x.size(0), hidden_} : Shape{hidden_};
  RecurrentPair state{.h = state_or_zeros(type_name(), "h", start.h, shape, x), .c = {}};
  if (kind_ == RecurrentKind::kLSTM) state.c = state_or_zeros(type_name(), "c", start.c, shape, x);
  const RecurrentPair next =
      recurrent_step(kind_, linear(x, weight_ih, bias_ih), linear(state.h, weight_hh, bias_hh), state);
  return {.h = next.h, .c = next.c};
}

LSTMCell::LSTMCell(std::int64_t in, std::int64_t hidden, const LSTMCellOptions& options)
    : RecurrentCell(in, hidden, RecurrentKind::kLSTM, options.bias) {}

GRUCell::GRUCell(std::int64_t in, std::int64_t hidden, const GRUCellOptions& options)
    : RecurrentCell(in, hidden, RecurrentKind::kGRU, options.bias) {}

RNNCell::RNNCell(std::int64_t in, std::int64_t hidden, const RNNCellOptions& options)
    : RecurrentCell(in, hidden, kind_of(options.nonlinearity), options.bias) {}

}  // namespace lockstep::nn
