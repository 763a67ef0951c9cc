#include "lockstep/tensor/ops/optim_ops_internal.h"

#include <array>
#include <vector>

#include "lockstep/base/check_internal.h"
#include "lockstep/tensor/kernels/kernels_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::raw {
namespace {

bool fits(const TensorImpl& a, const TensorImpl& b) {
  return a.shape == b.shape && a.dtype == b.dtype && a.storage->device() == b.storage->device();
}

void check(const char* op, const char* role, const Tensor& parameter, const Tensor& other) {
  LOCKSTEP_CHECK(fits(parameter.impl(), other.impl()), "{}: parameter is {}, {} is {}", op, describe(parameter), role,
                 describe(other));
}

// Names of the state tensors that a step uses, null for none.
using Roles = std::array<const char*, kMostStates>;

void check(const char* op, const Roles& roles, std::span<const Stepped> list) {
  LOCKSTEP_CHECK(list.size() <= kMostStepped, "{}: {} parameters, expected at most {} in one call", op, list.size(),
                 kMostStepped);
  const TensorImpl& first = list[0].parameter->impl();
  for (const Stepped& one : list) {
    const TensorImpl& parameter = one.parameter->impl();
    LOCKSTEP_CHECK(parameter.dtype == kFloat32 || parameter.dtype == kFloat64,
                   "{}: parameter is {}, expected f32 or f64", op, describe(*one.parameter));
    LOCKSTEP_CHECK(parameter.dtype == first.dtype && parameter.storage->device() == first.storage->device(),
                   "{}: one parameter is {}, another {}; step them in separate calls", op, describe(*list[0].parameter),
                   describe(*one.parameter));
    check(op, "the gradient", *one.parameter, *one.grad);
    if (!parameter.contiguous) require_writable(op, *one.parameter);
    for (std::size_t k = 0; k < roles.size(); ++k) {
      if (!roles[k]) continue;
      check(op, roles[k], *one.parameter, *one.state[k]);
      LOCKSTEP_CHECK(one.state[k]->is_contiguous(), "{}: {} is not contiguous: {}", op, roles[k],
                     describe(*one.state[k]));
    }
  }
}

// Calls step(kernels, memory) with contiguous copies where needed, and copies the results back to the parameters.
template <class Step>
void in_place(const Roles& roles, std::span<const Stepped> list, Step step) {
  std::array<SteppedMemory, kMostStepped> memory;
  std::vector<Tensor> copies;  // of tensors that are not contiguous
  struct Scattered {
    const Tensor* parameter;
    Tensor dense;
  };
  std::vector<Scattered> scattered;
  const auto dense = [&](const Tensor& x) {
    if (x.is_contiguous()) [[likely]]
      return x.raw_data();
    copies.push_back(contiguous(x));
    return copies.back().raw_data();
  };
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Stepped& one = list[i];
    memory[i] = {.parameter = dense(*one.parameter), .grad = nullptr, .state = {}, .count = one.parameter->numel()};
    for (std::size_t k = 0; k < roles.size(); ++k) memory[i].state[k] = roles[k] ? one.state[k]->raw_data() : nullptr;
    if (!one.parameter->is_contiguous()) [[unlikely]]
      scattered.push_back({one.parameter, copies.back()});
    memory[i].grad = dense(*one.grad);
  }
  step(kernels(list[0].parameter->device()), std::span<const SteppedMemory>(memory.data(), list.size()));
  for (const Scattered& one : scattered) copy(one.dense, *one.parameter);
  for (const Stepped& one : list) one.parameter->impl().storage->bump_version();
}

template <class Step>
using StepKernel = void (*)(std::span<const SteppedMemory>, DType, const Step&);

template <class Step>
void run(const char* op, const Roles& roles, std::span<const Stepped> list, const Step& step,
         StepKernel<Step> KernelTable::*kernel) {
  if (list.empty()) return;
  check(op, roles, list);
  in_place(roles, list, [&](const KernelTable& table, std::span<const SteppedMemory> memory) {
    (table.*kernel)(memory, list[0].parameter->dtype(), step);
  });
}

}  // namespace

void sgd_step(std::span<const Stepped> list, const SgdStep& step) {
  run("sgd_step", {step.momentum != 0 ? "the momentum buffer" : nullptr}, list, step, &KernelTable::sgd_step);
}

void adam_step(std::span<const Stepped> list, const AdamStep& step) {
  run("adam_step", {"exp_avg", "exp_avg_sq", step.amsgrad ? "max_exp_avg_sq" : nullptr}, list, step,
      &KernelTable::adam_step);
}

void rmsprop_step(std::span<const Stepped> list, const RmsPropStep& step) {
  run("rmsprop_step",
      {"the sum of squares", step.momentum != 0 ? "the momentum buffer" : nullptr,
       step.centered ? "grad_avg" : nullptr},
      list, step, &KernelTable::rmsprop_step);
}

void lion_step(std::span<const Stepped> list, const LionStep& step) {
  run("lion_step", {"exp_avg"}, list, step, &KernelTable::lion_step);
}

}  // namespace lockstep::raw
