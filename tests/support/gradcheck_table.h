// The table of gradient checks of tests/autograd/test_gradcheck_*.cpp: which operations have one.
#pragma once

#include <functional>
#include <set>

#include "tests/support/split_check.h"

namespace gradcheck_table {

using ls::Shape;
using Inputs = std::vector<ls::Tensor>;

inline std::set<std::string>& checked() {
  static std::set<std::string> names;
  return names;
}

inline const ls::TensorOptions leaf = {.dtype = ls::kFloat64, .requires_grad = true};

// Checks `function` at leaves of the given shapes with elements between low and high, also that a split backward has the
// bits of a joint one; `op` names the checked operation.
inline void check(const std::string& op, const std::vector<Shape>& shapes,
                  const std::function<ls::Tensor(const Inputs&)>& function, double low = -1, double high = 1) {
  checked().insert(op);
  Inputs inputs;
  std::string text = op;
  for (const Shape& shape : shapes) {
    inputs.push_back(numbers_between(low, high, shape, leaf, static_cast<std::uint32_t>(inputs.size()) + 1));
    text += " " + shape.to_string();
  }
  INFO(text);
  CHECK_NOTHROW(
      (void)ls::autograd::gradcheck([&](const Inputs& in) { return function(in); }, inputs, {.second_order = true}));
  split_check::check_operands(function, inputs);
}

// A nonlinear expression of one input, so that second derivatives are not all 0.
inline ls::Tensor curved(const ls::Tensor& x) { return x * x * x + x * 0.5; }

// The checks of test_gradcheck_shaping.cpp.
void check_shaping();
void check_contractions();

}  // namespace gradcheck_table
