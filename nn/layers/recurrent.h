/// \file
/// Recurrent layers. Names, gate order and initialisation are PyTorch's.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/nn/module.h"

namespace lockstep::nn {

struct RecurrentOptions {
  std::int64_t num_layers = 1;  ///< layers, each on the outputs of the one before
  bool bias = true;             ///< false: no bias_ih and bias_hh
  bool batch_first = false;     ///< x is (batch, time, in); false: (time, batch, in)
  double dropout = 0;           ///< probability for the outputs of all layers but the last, while training
  bool bidirectional = false;   ///< a second set of cells runs backwards in time; outputs are joined
};
using LSTMOptions = RecurrentOptions;  ///< options of LSTM
using GRUOptions = RecurrentOptions;   ///< options of GRU

/// The states of all layers and directions, (layers * directions, batch, hidden), layer by layer, forward first; without
/// batch (layers * directions, hidden). Undefined tensors stand for zeros.
struct RecurrentState {
  Tensor h = {};  ///< hidden states
  Tensor c = {};  ///< cell states, of LSTM only
};

/// The result of a recurrent layer.
struct RecurrentOutput {
  Tensor y;              ///< the last layer's h of every step: (time, batch, directions * hidden), or batch first
  RecurrentState state;  ///< after the last step (of the direction)
};

/// The common base of LSTM and GRU. Parameters of layer k: weight_ih_lk (gates hidden, in), weight_hh_lk (gates hidden,
/// hidden), bias_ih_lk and bias_hh_lk (gates hidden), and the same with the suffix "_reverse"; all from
/// U(-1/sqrt(hidden), 1/sqrt(hidden)). The input projection of all steps is one product.
class Recurrent : public Module {
 public:
  /// Runs all layers over x (time, batch, in), (batch, time, in) with .batch_first, or (time, in). Throws InvalidArgument
  /// for an x or states of other shapes, and for no steps.
  RecurrentOutput forward_state(const Tensor& x, const RecurrentState& start = {}) const;
  /// forward_state(x).y
  Tensor forward(const Tensor& x) const override { return forward_state(x).y; }

 protected:
  /// Throws InvalidArgument for sizes or num_layers below 1, and for a dropout outside [0, 1].
  Recurrent(std::int64_t in, std::int64_t hidden, std::int64_t gates, const RecurrentOptions& options);
  std::int64_t hidden_;  ///< size of h

 private:
  struct Cell {
    Parameter &weight_ih, &weight_hh, &bias_ih, &bias_hh;
  };
  // The state after a step, from both projections (batch, gates hidden) of a step.
  virtual RecurrentState next(const Tensor& of_input, const Tensor& of_hidden, const RecurrentState& state) const = 0;
  Tensor run(const Tensor& x, const Cell& cell, bool reverse, RecurrentState& state) const;

  std::int64_t in_, gates_;
  RecurrentOptions options_;
  std::vector<Cell> cells_;  // of each layer and direction
};

/// Long short-term memory, with the gates i, f, g, o: c' = sigmoid(f) c + sigmoid(i) tanh(g), h' = sigmoid(o) tanh(c').
/// (Hochreiter and Schmidhuber, 1997)
class LSTM : public Recurrent {
 public:
  LSTM(std::int64_t in, std::int64_t hidden, const LSTMOptions& options = {}) : Recurrent(in, hidden, 4, options) {}

 private:
  RecurrentState next(const Tensor& of_input, const Tensor& of_hidden, const RecurrentState& state) const override;
};

/// Gated recurrent unit, with the gates r, z, n: h' = (1 - z) n + z h, where n = tanh(n_x + r n_h). (Cho et al., 2014)
class GRU : public Recurrent {
 public:
  GRU(std::int64_t in, std::int64_t hidden, const GRUOptions& options = {}) : Recurrent(in, hidden, 3, options) {}

 private:
  RecurrentState next(const Tensor& of_input, const Tensor& of_hidden, const RecurrentState& state) const override;
};

}  // namespace lockstep::nn
