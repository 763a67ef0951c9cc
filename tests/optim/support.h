// Parameters with known gradients, for tests of optimizers.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "tests/support/testing.h"

using Parameters = std::vector<ls::nn::Parameter>;
using Make = std::function<std::unique_ptr<ls::optim::Optimizer>(const Parameters&)>;

template <class O, class Options>
Make make(const Options& options) {
  return [options](const Parameters& p) { return std::make_unique<O>(p, options); };
}

// A parameter that belongs to no module.
inline ls::nn::Parameter parameter(const std::vector<double>& values, ls::DType dtype = ls::kFloat64) {
  return ls::nn::Parameter(ls::tensor(values, {.dtype = dtype}));
}

inline void set_grad(const ls::nn::Parameter& p, const std::vector<double>& values) {
  p->set_grad(ls::tensor(values, {.dtype = p->dtype()}));
}

inline std::vector<double> values(const ls::Tensor& t) { return t.detach().to_vector<double>(); }

// True for equal keys in the same order, equal dtypes, shapes and bits.
inline bool same_bits(const ls::StateDict& a, const ls::StateDict& b) {
  if (a.size() != b.size()) return false;
  auto other = b.begin();
  for (const auto& [name, tensor] : a) {
    if (name != other->first || tensor.dtype() != other->second.dtype() || !ls::equal(tensor, other->second))
      return false;
    ++other;
  }
  return true;
}
