// Optimizer steps: one launch for all parameters of a call, listed in a table in the launch's arguments.
#include <cmath>
#include <cstdint>
#include <span>

#include "lockstep/tensor/cuda/loops_internal.h"
#include "lockstep/tensor/optim_numbers_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

// The update of one element: parameter p, gradient g and the state s of kStates numbers.
template <class T>
struct SgdPlain {
  static constexpr int kStates = 0;
  using Numbers = SgdNumbers<T>;
  raw::SgdStep step;
  DEVICE_ONLY T gradient(const Numbers& n, T p, T g) const {
    return step.weight_decay != 0 ? n.sign * g + n.decay * p : n.sign * g;
  }
  DEVICE_ONLY void operator()(const Numbers& n, T& p, T g, T*) const { p -= n.lr * gradient(n, p, g); }
};

template <class T>
struct SgdMomentum {
  static constexpr int kStates = 1;
  using Numbers = SgdNumbers<T>;
  raw::SgdStep step;
  DEVICE_ONLY void operator()(const Numbers& n, T& p, T grad, T* s) const {
    const T g = SgdPlain<T>{step}.gradient(n, p, grad), velocity = n.momentum * s[0] + n.keep * g;
    s[0] = velocity;
    p -= n.lr * (step.nesterov ? g + n.momentum * velocity : velocity);
  }
};

template <class T>
struct Adam {
  static constexpr int kStates = 2;
  using Numbers = AdamNumbers<T>;
  raw::AdamStep step;
  DEVICE_ONLY void operator()(const Numbers& n, T& p, T grad, T* s) const {
    const bool decays = step.weight_decay != 0;
    const T g = decays && !step.decoupled ? grad + n.decay * p : grad, x = decays && step.decoupled ? p * n.shrink : p;
    s[0] = n.beta1 * s[0] + n.rest1 * g;
    s[1] = n.beta2 * s[1] + n.rest2 * g * g;
    p = x - n.rate * s[0] / (std::sqrt(s[1]) / n.root + n.eps);
  }
};

template <class T, class Update>
struct StepBlock {
  static constexpr int kPack = detail::kPackBytes / static_cast<int>(sizeof(T));
  static constexpr std::int64_t kShare = std::int64_t{4} * kThreads * kPack;  // elements of a block
  struct Entry {
    T* parameter;
    const T* grad;
    T* state[2];
    std::int64_t count, first_block;
    bool packed;  // all pointers are aligned to 16 bytes
  };
  Entry entries[raw::kMostStepped];
  int entry_count;
  Update update;

  template <int N>
  DEVICE_ONLY void step(const Entry& entry, const typename Update::Numbers& numbers, std::int64_t at) const {
    using Values = Pack<T, N>;
    Values p = *reinterpret_cast<const Values*>(entry.parameter + at);
    const Values g = *reinterpret_cast<const Values*>(entry.grad + at);
    Values s[2];
    for (int k = 0; k < Update::kStates; ++k) s[k] = *reinterpret_cast<const Values*>(entry.state[k] + at);
    for (int j = 0; j < N; ++j) {
      T state[2] = {};
      for (int k = 0; k < Update::kStates; ++k) state[k] = s[k].values[j];
      update(numbers, p.values[j], g.values[j], state);
      for (int k = 0; k < Update::kStates; ++k) s[k].values[j] = state[k];
    }
    *reinterpret_cast<Values*>(entry.parameter + at) = p;
    for (int k = 0; k < Update::kStates; ++k) *reinterpret_cast<Values*>(entry.state[k] + at) = s[k];
  }

  DEVICE_ONLY void operator()(const Block& block) const {
    int own = 0;
    while (own + 1 < entry_count && entries[own + 1].first_block <= block.index()) ++own;
    const Entry& entry = entries[own];
    const std::int64_t begin = (block.index() - entry.first_block) * kShare;
    const std::int64_t end = entry.count < begin + kShare ? entry.count : begin + kShare;
    const std::int64_t packs_end = entry.packed ? begin + (end - begin) / kPack * kPack : begin;
    block.each([&](int thread) {
      const typename Update::Numbers numbers(update.step.on_device ? *update.step.on_device : update.step);
      for (std::int64_t i = begin + thread * kPack; i < packs_end; i += kThreads * kPack)
        step<kPack>(entry, numbers, i);
      for (std::int64_t i = packs_end + thread; i < end; i += kThreads) step<1>(entry, numbers, i);
    });
  }
};

template <class T, class Update>
void run_step(const char* op, std::span<const raw::SteppedMemory> tensors, const Update& update) {
  StepBlock<T, Update> body{.entries = {}, .entry_count = 0, .update = update};
  std::int64_t blocks = 0;
  for (const raw::SteppedMemory& one : tensors) {
    if (one.count == 0) continue;
    auto& entry = body.entries[body.entry_count++];
    entry = {.parameter = static_cast<T*>(one.parameter),
             .grad = static_cast<const T*>(one.grad),
             .state = {static_cast<T*>(one.state[0]), static_cast<T*>(one.state[1])},
             .count = one.count,
             .first_block = blocks,
             .packed = true};
    for (const void* const data : {static_cast<const void*>(one.parameter), one.grad,
                                   static_cast<const void*>(one.state[0]), static_cast<const void*>(one.state[1])})
      entry.packed = entry.packed && reinterpret_cast<std::uintptr_t>(data) % detail::kPackBytes == 0;
    blocks += (one.count + body.kShare - 1) / body.kShare;
  }
  launch_blocks(op, blocks, body);
}

}  // namespace

void sgd_step(std::span<const raw::SteppedMemory> tensors, DType dtype, const raw::SgdStep& step) {
  for_float(dtype, [&]<class T>(T) {
    if (step.momentum != 0)
      run_step<T>("sgd_step", tensors, SgdMomentum<T>{step});
    else
      run_step<T>("sgd_step", tensors, SgdPlain<T>{step});
  });
}

void adam_step(std::span<const raw::SteppedMemory> tensors, DType dtype, const raw::AdamStep& step) {
  for_float(dtype, [&]<class T>(T) { run_step<T>("adam_step", tensors, Adam<T>{step}); });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
