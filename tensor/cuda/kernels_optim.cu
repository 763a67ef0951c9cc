// Optimizer steps: one launch for all parameters of a call, listed in a table in the launch's arguments.
#include <cmath>
#include <cstdint>
#include <span>

#include "lockstep/tensor/cuda/loops_internal.h"
#include "lockstep/tensor/kernels/optim_numbers_internal.h"

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

template <class T, bool kAmsgrad>
struct Adam {
  static constexpr int kStates = kAmsgrad ? 3 : 2;
  using Numbers = AdamNumbers<T>;
  raw::AdamStep step;
  DEVICE_ONLY void operator()(const Numbers& n, T& p, T grad, T* s) const {
    const bool decays = step.weight_decay != 0;
    const T g = decays && !step.decoupled ? grad + n.decay * p : grad, x = decays && step.decoupled ? p * n.shrink : p;
    s[0] = n.beta1 * s[0] + n.rest1 * g;
    s[1] = n.beta2 * s[1] + n.rest2 * g * g;
    if constexpr (kAmsgrad) s[2] = s[2] > s[1] ? s[2] : s[1];
    p = x - n.rate * s[0] / (std::sqrt(s[kStates - 1]) / n.root + n.eps);
  }
};

template <class T, bool kMomentum, bool kCentered>
struct RmsProp {
  static constexpr int kStates = 1 + kMomentum + kCentered;
  using Numbers = RmsPropNumbers<T>;
  raw::RmsPropStep step;
  DEVICE_ONLY void operator()(const Numbers& n, T& p, T grad, T* s) const {
    const T g = step.weight_decay != 0 ? grad + n.decay * p : grad;
    s[0] = n.alpha * s[0] + n.rest * g * g;
    T variance = s[0];
    if constexpr (kCentered) {
      T& mean = s[kStates - 1];
      mean = n.alpha * mean + n.rest * g;
      variance -= mean * mean;
    }
    T update = g / (std::sqrt(variance) + n.eps);
    if constexpr (kMomentum) s[1] = update = n.momentum * s[1] + update;
    p -= n.lr * update;
  }
};

template <class T>
struct Lion {
  static constexpr int kStates = 1;
  using Numbers = LionNumbers<T>;
  raw::LionStep step;
  DEVICE_ONLY void operator()(const Numbers& n, T& p, T g, T* s) const {
    const T update = n.beta1 * s[0] + n.rest1 * g;
    p = n.shrink * p - n.lr * static_cast<T>((update > 0) - (update < 0));
    s[0] = n.beta2 * s[0] + n.rest2 * g;
  }
};

template <class T, class Update>
struct StepBlock {
  static constexpr int kPack = detail::kPackBytes / static_cast<int>(sizeof(T));
  static constexpr std::int64_t kShare = std::int64_t{4} * kThreads * kPack;  // elements of a block
  struct Entry {
    T* parameter;
    const T* grad;
    T* state[raw::kMostStates];
    std::int64_t count;
    std::int32_t first_block;  // 32 bits, so that the table fits into the 4 KiB of a launch's arguments
    bool packed;               // all pointers are aligned to 16 bytes
  };
  Entry entries[raw::kMostStepped];
  int entry_count;
  Update update;

  template <int N>
  DEVICE_ONLY void step(const Entry& entry, const typename Update::Numbers& numbers, std::int64_t at) const {
    using Values = Pack<T, N>;
    Values p = *reinterpret_cast<const Values*>(entry.parameter + at);
    const Values g = *reinterpret_cast<const Values*>(entry.grad + at);
    Values s[raw::kMostStates];
    for (int k = 0; k < Update::kStates; ++k) s[k] = *reinterpret_cast<const Values*>(entry.state[k] + at);
    for (int j = 0; j < N; ++j) {
      T state[raw::kMostStates] = {};
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
             .state = {},
             .count = one.count,
             .first_block = static_cast<std::int32_t>(blocks),
             .packed = true};
    const auto check = [&](const void* data) {
      entry.packed = entry.packed && reinterpret_cast<std::uintptr_t>(data) % detail::kPackBytes == 0;
    };
    check(one.parameter);
    check(one.grad);
    int states = 0;
    for (void* const state : one.state) {
      if (!state) continue;
      check(state);
      entry.state[states++] = static_cast<T*>(state);
    }
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
  for_float(dtype, [&]<class T>(T) {
    if (step.amsgrad)
      run_step<T>("adam_step", tensors, Adam<T, true>{step});
    else
      run_step<T>("adam_step", tensors, Adam<T, false>{step});
  });
}

void rmsprop_step(std::span<const raw::SteppedMemory> tensors, DType dtype, const raw::RmsPropStep& step) {
  for_float(dtype, [&]<class T>(T) {
    const char* op = "rmsprop_step";
    if (step.momentum != 0 && step.centered) return run_step<T>(op, tensors, RmsProp<T, true, true>{step});
    if (step.momentum != 0) return run_step<T>(op, tensors, RmsProp<T, true, false>{step});
    if (step.centered) return run_step<T>(op, tensors, RmsProp<T, false, true>{step});
    run_step<T>(op, tensors, RmsProp<T, false, false>{step});
  });
}

void lion_step(std::span<const raw::SteppedMemory> tensors, DType dtype, const raw::LionStep& step) {
  for_float(dtype, [&]<class T>(T) { run_step<T>("lion_step", tensors, Lion<T>{step}); });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
