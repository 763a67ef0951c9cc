// Steps of LSTM and GRU: see tensor/ops/recurrent_steps_internal.h.
#include "lockstep/tensor/kernels/level_internal.h"

#include "lockstep/tensor/cpu/loops_internal.h"
#include "lockstep/tensor/kernels/recurrent_step_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

constexpr std::int64_t kElementWork = 16;  // of an element, for the choice of the number of threads

}  // namespace

// Elements of a row do not depend on each other, which lets the compiler use vectors.
void recurrent_step(const raw::RecurrentStep& step, DType dtype) {
  for_step(step, dtype, [&](auto elements) {
    for_units(step.batch, kElementWork * step.hidden, [elements](std::int64_t row) {
      if (elements.runs(row)) {
        LOCKSTEP_EACH_ELEMENT
        for (std::int64_t j = 0; j < elements.n; ++j) elements.step(row, j);
      } else {
        LOCKSTEP_EACH_ELEMENT
        for (std::int64_t j = 0; j < elements.n; ++j) elements.hold(row, j);
      }
    });
  });
}

void recurrent_step_backward(const raw::RecurrentStep& step, DType dtype) {
  for_step(step, dtype, [&](auto elements) {
    for_units(step.batch, kElementWork * step.hidden, [elements](std::int64_t row) {
      if (elements.runs(row)) {
        LOCKSTEP_EACH_ELEMENT
        for (std::int64_t j = 0; j < elements.n; ++j) elements.step_backward(row, j);
      } else {
        LOCKSTEP_EACH_ELEMENT
        for (std::int64_t j = 0; j < elements.n; ++j) elements.hold_backward(row, j);
      }
    });
  });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
