// Initial values of parameters. While a DeferredInit exists, new parameters have no storage; they keep the rule for
// their values.
#pragma once

#include "lockstep/tensor/random/random_draws_internal.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::nn {

// The rule for a parameter's values. Initialisations with random values are numbered in order (tensor/random/random.h).
struct Initial {
  enum Kind : std::uint8_t { kConstant, kUniform, kNormal, kTruncatedNormal, kOrthogonal } kind;
  double a = 0, b = 0;                        // the constant; low and high; mean and standard deviation; the gain
  random::Position position{};                // of random values; set by initial() and initialise()
  DType dtype = kFloat32;                     // in which the values are computed; set in the same way
  std::int64_t zero_begin = 0, zero_end = 0;  // elements of the flattened tensor that are 0 instead
  double low = 0, high = 0;                   // of a truncated distribution
  std::int64_t rows = 0, columns = 0;         // of an orthogonal matrix
};

// A new parameter, f32 on the CPU, or deferred.
Tensor initial(const Shape& shape, const Initial& rule);
inline Tensor initial_zeros(const Shape& shape) { return initial(shape, {.kind = Initial::kConstant}); }
inline Tensor initial_ones(const Shape& shape) { return initial(shape, {.kind = Initial::kConstant, .a = 1}); }
inline Tensor initial_uniform(const Shape& shape, double low, double high) {
  return initial(shape, {.kind = Initial::kUniform, .a = low, .b = high});
}

// Elements `first`, first + 1, ... in `shape` of a random tensor with the rule kTruncatedNormal or kOrthogonal.
Tensor truncated_normal(const Initial& rule, std::int64_t first, const Shape& shape, const TensorOptions& options);
Tensor orthogonal(const Initial& rule, std::int64_t first, const Shape& shape, const TensorOptions& options);

// Fills `x` by the rule or, if `x` is deferred, replaces its rule.
void initialise(const Tensor& x, const Initial& rule);
// A deferred tensor of another dtype, whose values are those of `x`, converted.
Tensor deferred_as(const Tensor& x, DType dtype);
// All values of a deferred parameter, in its shape.
Tensor initial_values(const Tensor& parameter, Device device);

}  // namespace lockstep::nn
