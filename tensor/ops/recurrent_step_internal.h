// One step of LSTM or GRU after its products: all gates and the new state in one kernel.
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

}  // namespace lockstep::raw
