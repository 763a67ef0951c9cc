/// \file
/// autograd::grad, and tools to check gradients and to draw graphs.
#pragma once

#include <concepts>
#include <string>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep::autograd {

/// Options of `grad`.
struct GradOptions {
  std::vector<Tensor> grad_outputs = {};  ///< one for each output; empty: ones (each output then has one element)
  bool retain_graph = false;              ///< keep the saved tensors, so that backward can run again
  bool create_graph = false;              ///< record backward itself, for second derivatives
  bool allow_unused = false;  ///< an input that no output depends on: undefined gradient instead of an error
};

/// d(sum of outputs)/d(inputs), without touching any tensor's grad().
std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         const GradOptions& options = {});
/// The gradient of one output for one input. A template, so that the braces of grad({loss}, {x}) are always
/// vectors.
template <std::convertible_to<Tensor> Output, std::convertible_to<Tensor> Input>
Tensor grad(const Output& output, const Input& input, const GradOptions& options = {}) {
  return grad(std::vector<Tensor>{output}, std::vector<Tensor>{input}, options)[0];
}

/// Options of `gradcheck`.
struct GradcheckOptions {
  double eps = 1e-6;            ///< step of the central difference
  double atol = 1e-5;           ///< absolute tolerance: an error of atol + rtol |expected| is allowed
  double rtol = 1e-3;           ///< relative tolerance
  bool raise_exception = true;  ///< throw InvalidArgument, which names the first element that differs; or return false
  bool second_order = false;    ///< check the gradient of the gradient as well
};

/// Returns true if backward of `fn` agrees with central differences at `inputs` (f64; those that require grad are
/// checked).
bool gradcheck(const Callback<Tensor(const std::vector<Tensor>&)>& fn, const std::vector<Tensor>& inputs,
               const GradcheckOptions& options = {});

/// The graph behind `t` in Graphviz' DOT language: operations, their edges, leaves with shape and dtype.
std::string to_dot(const Tensor& t);

}  // namespace lockstep::autograd
