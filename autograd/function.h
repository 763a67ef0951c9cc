/// \file
/// User-defined operations:
///
///     struct Square : autograd::Function<Square> {
///       static Tensor forward(Context& context, const Tensor& x) { context.save_for_backward({x}); return x * x; }
///       static Gradients backward(Context& context, const Tensor& grad) { return {grad * context.saved(0) * 2.0}; }
///     };
///     Tensor y = Square::apply(x);
///
/// `forward` takes a Context and any arguments and returns a Tensor or a `std::vector<Tensor>`; it is not recorded.
/// `backward` takes the Context and one gradient for each output (undefined for an unused output). It returns one
/// gradient for each Tensor argument, or one for each argument; a gradient that is not needed may be undefined.
/// `backward` is recorded if create_graph is set.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/autograd/node.h"

namespace lockstep::autograd {

/// Passes tensors from forward to backward.
class Context {
 public:
  /// Saves inputs, outputs or any other tensors. Changing one in place before backward is an error.
  void save_for_backward(const std::vector<Tensor>& tensors);
  /// Saved tensor `index`. Throws InvalidArgument if fewer were saved.
  Tensor saved(std::size_t index) const;
  /// True if the gradient of Tensor argument `index` is needed. For use in backward, which the pipeline schedule zb1p
  /// runs twice, each time for some of the arguments.
  bool needs_input_grad(std::size_t index) const { return index >= 64 || (wanted_ >> index & 1u) != 0; }

 private:
  friend class FunctionNode;
  struct Entry {
    Tensor tensor;
    std::uint32_t version = 0;
    int output = -1;  // index, if the tensor is an output: saved without history, to avoid a reference cycle
  };
  std::vector<Entry> entries_;
  Node* node_ = nullptr;  // the recorded operation
  std::uint64_t wanted_ = 0;
};

/// The backward of a user-defined operation.
using UserBackward = Callback<Gradients(Context&, Tensors&)>;
/// Records an operation run by Function::apply. Not called directly.
std::vector<Tensor> record_function(const char* name, std::shared_ptr<Context> context, std::vector<Tensor> outputs,
                                    const std::vector<Tensor>& inputs, const std::vector<bool>& is_tensor,
                                    UserBackward backward);

/// Base class of user-defined operations: struct Mine : `Function<Mine>`. The top of this file has an example.
template <class F>
class Function {
 public:
  /// Runs forward and returns its result. Records the operation if an argument requires grad.
  template <class... Args>
  static auto apply(const Args&... args) {
    auto context = std::make_shared<Context>();
    std::vector<Tensor> inputs;
    (add_input(inputs, args), ...);
    const std::vector<bool> is_tensor{std::is_convertible_v<const Args&, const Tensor&>...};
    constexpr bool kSingle = std::is_same_v<decltype(F::forward(*context, args...)), Tensor>;
    std::vector<Tensor> outputs;
    {
      const NoGradGuard no_grad;
      if constexpr (kSingle)
        outputs.push_back(F::forward(*context, args...));
      else
        outputs = F::forward(*context, args...);
    }
    outputs = record_function("function", std::move(context), std::move(outputs), inputs, is_tensor,
                              [](Context& c, Tensors& grads) {
                                if constexpr (kSingle)
                                  return Gradients(F::backward(c, grads[0]));
                                else
                                  return Gradients(F::backward(c, std::vector<Tensor>(grads.begin(), grads.end())));
                              });
    if constexpr (kSingle)
      return std::move(outputs[0]);
    else
      return outputs;
  }

 private:
  template <class T>
  static void add_input(std::vector<Tensor>& inputs, const T& arg) {
    if constexpr (std::is_convertible_v<const T&, const Tensor&>) inputs.push_back(static_cast<const Tensor&>(arg));
  }
};

}  // namespace lockstep::autograd
