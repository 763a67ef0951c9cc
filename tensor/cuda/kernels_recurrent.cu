// Steps of LSTM and GRU: see tensor/ops/recurrent_steps_internal.h.
#include "lockstep/tensor/cuda/launch_internal.h"
#include "lockstep/tensor/kernels/recurrent_step_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

template <class Elements, bool kBackward>
struct StepOfElement {
  Elements elements;
  DEVICE_ONLY void operator()(std::int64_t i) const {
    const std::int64_t row = i / elements.n, j = i % elements.n;
    const bool runs = elements.runs(row);
    if constexpr (kBackward)
      runs ? elements.step_backward(row, j) : elements.hold_backward(row, j);
    else
      runs ? elements.step(row, j) : elements.hold(row, j);
  }
};

}  // namespace

void recurrent_step(const raw::RecurrentStep& step, DType dtype) {
  for_step(step, dtype, [&]<class E>(const E& elements) {
    launch_elements("recurrent_step", step.batch * step.hidden, StepOfElement<E, false>{elements});
  });
}

void recurrent_step_backward(const raw::RecurrentStep& step, DType dtype) {
  for_step(step, dtype, [&]<class E>(const E& elements) {
    launch_elements("recurrent_step backward", step.batch * step.hidden, StepOfElement<E, true>{elements});
  });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
