/// \file
/// Activation checkpointing: the intermediate results of a function are freed after forward and recomputed in backward.
#pragma once

#include <concepts>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/callback.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::autograd {

namespace detail {
using CheckpointFunction = Callback<std::vector<Tensor>(const std::vector<Tensor>&)>;
std::vector<Tensor> checkpoint(CheckpointFunction function, const std::vector<Tensor>& inputs);
}  // namespace detail

/// True while this thread runs a function of `checkpoint` again in backward. A module that updates a buffer in forward
/// must skip the update then, as BatchNorm2d does.
bool is_recomputing();

/// Calls `function(inputs...)`, which returns a Tensor or a `std::vector<Tensor>`, and returns its result. Backward calls
/// the function again, with the same random numbers, autocast mode, micro-batch and replica, and so with the same bits.
/// Until then only the inputs and results are kept, not what lies between them.
///
///     x = autograd::checkpoint([&](const Tensor& x) { return block(x); }, x);
///
/// The function may use other tensors and parameters, and checkpoint itself; it must compute the same each time. It is
/// copied, or, if it cannot be copied, referred to (as a module: `checkpoint(block, x)`); what it refers to must live
/// until backward. A parameter that is used both inside and outside the function receives the sum of the contributions
/// inside as one addend, so the last bits of its gradient may differ from those without checkpoint.
/// Backward throws InvalidArgument if the second call draws other random numbers, uses another number of tensors that
/// require grad, or returns other shapes (values are not compared); if an input or a captured leaf was changed in place
/// since forward; and with create_graph.
template <class F, std::convertible_to<const Tensor&>... Inputs>
auto checkpoint(F&& function, const Inputs&... inputs) {
  using Function = std::remove_reference_t<F>;
  using Result = std::invoke_result_t<Function&, decltype(static_cast<const Tensor&>(inputs))...>;
  static_assert(std::is_same_v<Result, Tensor> || std::is_same_v<Result, std::vector<Tensor>>,
                "checkpoint: the function returns a Tensor or a std::vector<Tensor>");
  constexpr bool kRefers = std::is_lvalue_reference_v<F> && !std::copy_constructible<std::remove_cv_t<Function>>;
  struct Held {
    std::conditional_t<kRefers, Function&, std::remove_cv_t<Function>> function;  ///< a copy, or a reference
  };
  detail::CheckpointFunction on_list = [held = Held{std::forward<F>(function)}](const std::vector<Tensor>& x) mutable {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      if constexpr (std::is_same_v<Result, Tensor>)
        return std::vector<Tensor>{held.function(x[I]...)};
      else
        return held.function(x[I]...);
    }
    (std::index_sequence_for<Inputs...>());
  };
  std::vector<Tensor> results = detail::checkpoint(std::move(on_list), {static_cast<const Tensor&>(inputs)...});
  if constexpr (std::is_same_v<Result, Tensor>)
    return std::move(results[0]);
  else
    return results;
}

}  // namespace lockstep::autograd
