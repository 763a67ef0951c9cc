// Raw random tensors: each draws from the calling thread's current micro-batch (random.h).
#pragma once

#include "lockstep/tensor/random.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::raw {

Tensor uniform(const Shape& shape, double low, double high, random::Stream stream, const TensorOptions& options = {});
Tensor normal(const Shape& shape, random::Stream stream, const TensorOptions& options = {});
Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape, const TensorOptions& options = {});
Tensor randperm(std::int64_t n, const TensorOptions& options = {});
// (..., samples) i64: classes drawn in proportion to the weights (classes) or (rows, classes). Drawn on the CPU.
Tensor multinomial(const Tensor& weights, std::int64_t samples, bool replacement);
// 1 / keep with probability `keep`, otherwise 0.
Tensor dropout_mask(const Shape& shape, double keep, const TensorOptions& options = {});
// The same in two steps: the position of a mask's numbers, from which the mask can be drawn again.
random::Position reserve_dropout(std::int64_t elements, Device device);
Tensor dropout_mask(const Shape& shape, double keep, const TensorOptions& options, const random::Position& position);

}  // namespace lockstep::raw
