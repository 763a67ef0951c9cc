/// \file
/// Recurrent layers and cells. Names, gate order and initialisation are PyTorch's.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/nn/module.h"

namespace lockstep {
enum class RecurrentKind : std::uint8_t;
}

namespace lockstep::nn {

struct RecurrentOptions {
  std::int64_t num_layers = 1;  ///< layers, each on the outputs of the one before
  bool bias = true;             ///< false: no bias_ih and bias_hh
  /// Must be given. true: x is (batch, time, in); false, PyTorch's default: x is (time, batch, in).
  std::optional<bool> batch_first = {};
  double dropout = 0;          ///< probability for the outputs of all layers but the last, while training
  bool bidirectional = false;  ///< a second set of cells runs backwards in time; outputs are joined
};
using LSTMOptions = RecurrentOptions;  ///< options of LSTM
using GRUOptions = RecurrentOptions;   ///< options of GRU

/// The activation of RNN and RNNCell.
enum class RNNNonlinearity : std::uint8_t { kTanh, kReLU };

/// Options of RNN: those of RecurrentOptions, and its activation.
struct RNNOptions {
  std::int64_t num_layers = 1;                            ///< see RecurrentOptions
  bool bias = true;                                       ///< see RecurrentOptions
  std::optional<bool> batch_first = {};                   ///< see RecurrentOptions
  double dropout = 0;                                     ///< see RecurrentOptions
  bool bidirectional = false;                             ///< see RecurrentOptions
  RNNNonlinearity nonlinearity = RNNNonlinearity::kTanh;  ///< kTanh or kReLU
};

/// The states of all layers and directions, (layers * directions, batch, hidden), layer by layer, forward first; without
/// batch (layers * directions, hidden). Of a cell, (batch, hidden) or (hidden). Undefined tensors stand for zeros.
struct RecurrentState {
  Tensor h = {};  ///< hidden states
  Tensor c = {};  ///< cell states, of LSTM and LSTMCell only
};

/// Options of a call of a recurrent layer.
struct SequenceOptions {
  /// The number of steps of each sequence: i64 (batch), each from 1 to time, in any order. Undefined: all steps of x.
  Tensor lengths = {};
};

/// The result of a recurrent layer.
struct RecurrentOutput {
  Tensor y;              ///< the last layer's h of every step: (time, batch, directions * hidden), or batch first
  RecurrentState state;  ///< after the last step (of the direction)
};

/// The common base of LSTM, GRU and RNN. Parameters of layer k: weight_ih_lk (gates hidden, in), weight_hh_lk (gates
/// hidden, hidden), bias_ih_lk and bias_hh_lk (gates hidden), and the same with the suffix "_reverse"; all from
/// U(-1/sqrt(hidden), 1/sqrt(hidden)). The input projection of all steps is one product.
class Recurrent : public Module {
 public:
  /// Runs all layers over x (time, batch, in), (batch, time, in) with .batch_first, or (time, in). With
  /// `sequence.lengths` the steps of x after a sequence's end have no effect, as with PyTorch's pack_padded_sequence: y is
  /// 0 there, the state is that of the sequence's last step, and the reverse direction starts there. Reads the lengths on
  /// the host. Throws InvalidArgument for an x, states or lengths that do not fit, and for no steps.
  RecurrentOutput forward_state(const Tensor& x, const RecurrentState& start = {},
                                const SequenceOptions& sequence = {}) const;
  /// forward_state(x).y
  Tensor forward(const Tensor& x) const override { return forward_state(x).y; }

 protected:
  /// Throws InvalidArgument for sizes or num_layers below 1, for a dropout outside [0, 1], and without .batch_first.
  Recurrent(std::int64_t in, std::int64_t hidden, RecurrentKind kind, const RecurrentOptions& options);

 private:
  struct Weights {
    Parameter &weight_ih, &weight_hh, &bias_ih, &bias_hh;
  };
  std::int64_t in_, hidden_;
  RecurrentKind kind_;
  RecurrentOptions options_;
  std::vector<Weights> weights_;  // of each layer and direction
};

/// Long short-term memory, with the gates i, f, g, o: c' = sigmoid(f) c + sigmoid(i) tanh(g), h' = sigmoid(o) tanh(c').
/// (Hochreiter and Schmidhuber, 1997)
class LSTM : public Recurrent {
 public:
  LSTM(std::int64_t in, std::int64_t hidden, const LSTMOptions& options = {});
};

/// Gated recurrent unit, with the gates r, z, n: h' = (1 - z) n + z h, where n = tanh(n_x + r n_h). (Cho et al., 2014)
class GRU : public Recurrent {
 public:
  GRU(std::int64_t in, std::int64_t hidden, const GRUOptions& options = {});
};

/// Elman's recurrent layer: h' = tanh(x + h), or relu, of both products. (Elman, 1990)
class RNN : public Recurrent {
 public:
  RNN(std::int64_t in, std::int64_t hidden, const RNNOptions& options = {});
};

/// Options of LSTMCell and GRUCell.
struct RecurrentCellOptions {
  bool bias = true;  ///< false: no bias_ih and bias_hh
};
using LSTMCellOptions = RecurrentCellOptions;  ///< options of LSTMCell
using GRUCellOptions = RecurrentCellOptions;   ///< options of GRUCell

/// Options of RNNCell.
struct RNNCellOptions {
  bool bias = true;                                       ///< false: no bias_ih and bias_hh
  RNNNonlinearity nonlinearity = RNNNonlinearity::kTanh;  ///< kTanh or kReLU
};

/// The common base of the cells, which run one step. Parameters are initialised as in the layers.
class RecurrentCell : public Module {
 public:
  /// The state after a step of x (batch, in) or (in). Throws InvalidArgument for an x or a state of another shape.
  RecurrentState forward_state(const Tensor& x, const RecurrentState& start = {}) const;
  /// forward_state(x).h
  Tensor forward(const Tensor& x) const override { return forward_state(x).h; }

  Parameter& weight_ih;  ///< (gates hidden, in)
  Parameter& weight_hh;  ///< (gates hidden, hidden)
  Parameter& bias_ih;    ///< (gates hidden); an undefined tensor if `.bias` is false
  Parameter& bias_hh;    ///< (gates hidden); an undefined tensor if `.bias` is false

 protected:
  /// Throws InvalidArgument for sizes below 1.
  RecurrentCell(std::int64_t in, std::int64_t hidden, RecurrentKind kind, bool bias);

 private:
  std::int64_t in_, hidden_;
  RecurrentKind kind_;
};

/// A step of LSTM.
class LSTMCell : public RecurrentCell {
 public:
  LSTMCell(std::int64_t in, std::int64_t hidden, const LSTMCellOptions& options = {});
};

/// A step of GRU.
class GRUCell : public RecurrentCell {
 public:
  GRUCell(std::int64_t in, std::int64_t hidden, const GRUCellOptions& options = {});
};

/// A step of RNN.
class RNNCell : public RecurrentCell {
 public:
  RNNCell(std::int64_t in, std::int64_t hidden, const RNNCellOptions& options = {});
};

}  // namespace lockstep::nn
