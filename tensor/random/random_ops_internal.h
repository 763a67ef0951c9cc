// Raw random tensors. Functions without a position draw at the calling thread's site and micro-batch (random.h).
#pragma once

#include "lockstep/tensor/random/random_draws_internal.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::raw {

Tensor uniform(const Shape& shape, double low, double high, const TensorOptions& options = {});
Tensor normal(const Shape& shape, const TensorOptions& options = {});
Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape, const TensorOptions& options = {});
Tensor randperm(std::int64_t n, const TensorOptions& options = {});
// (..., samples) i64: classes drawn in proportion to the weights (classes) or (rows, classes). Drawn on the CPU.
Tensor multinomial(const Tensor& weights, std::int64_t samples, bool replacement);

// Counter blocks of a draw of `elements` numbers of `dtype`.
std::uint64_t blocks_of(std::int64_t elements, DType dtype);
// Elements `first`, first + 1, ... of a draw at `position`, in `shape`.
Tensor uniform_at(const random::Position& position, std::int64_t first, const Shape& shape, double low, double high,
                  const TensorOptions& options);
Tensor normal_at(const random::Position& position, std::int64_t first, const Shape& shape,
                 const TensorOptions& options);

// The position of a part of a dropout mask of so many elements, from which the part can be drawn again.
random::Position next_dropout(std::int64_t elements, Device device, const random::BlockPart& part = {});
// 1 / keep with probability `keep`, otherwise 0. f16 and bf16 masks are drawn in f32 and rounded.
Tensor dropout_mask(const Shape& shape, double keep, const TensorOptions& options, const random::Position& position);

}  // namespace lockstep::raw
