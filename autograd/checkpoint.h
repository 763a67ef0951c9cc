/// \file
/// Recomputation: a function whose intermediate results are freed after forward and computed again in backward.
#pragma once

#include <concepts>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/tensor/callback.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::autograd {

namespace detail {
using CheckpointFunction = Callback<std::vector<Tensor>(const std::vector<Tensor>&)>;
std::vector<Tensor> checkpoint(CheckpointFunction function, const std::vector<Tensor>& inputs);
}  // namespace detail

/// Whether this thread repeats a function of `checkpoint` in backward. A module of yours that updates a buffer in
/// forward leaves the buffer alone then, as BatchNorm2d does.
bool is_recomputing();

/// Calls `function(inputs...)`, which returns a Tensor or a `std::vector<Tensor>`, and returns its result. Backward calls
/// the function again, with the same random numbers, micro-batch and replica, and so with the same bits. Until then
/// only the inputs and results are kept, not what lies between them.
///
///     x = autograd::checkpoint([&](const Tensor& x) { return block(x); }, x);
///
/// The function may use other tensors and parameters, and checkpoint itself; it must compute the same each time. It is
/// copied, or, if it cannot be copied, referred to (as a module: `checkpoint(block, x)`); what it refers to must live
/// until backward. A parameter that is used in the function and outside of it gets the function's sum in one piece, so
/// its last bits may differ from those without checkpoint.
/// Backward throws InvalidArgument if the function computes something else than in forward, if an input or a parameter
/// was changed in place in between, and with create_graph.
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
