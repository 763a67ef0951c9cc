// Writing by index: scatter and scatter_reduce, and the positions of elements: nonzero, masked_select,
// argsort. Forward and gradient side by side.
#include <cmath>
#include <limits>

#include "lockstep/autograd/ops/autocast_internal.h"
#include "lockstep/autograd/ops/operations_internal.h"
#include "lockstep/base/check_internal.h"

namespace lockstep {

using raw::Scatter;

namespace {

// True for the elements of src that scatter leaves in the result: of several for one place, the last.
Tensor is_kept(const Shape& shape, std::int64_t dim, const Tensor& index) {
  const TensorOptions i64 = {.dtype = kInt64, .device = index.device()};
  const Tensor order = raw::reshape(raw::arange(0, index.numel(), 1, i64), index.shape());
  const Tensor last = raw::scatter("scatter", raw::zeros(shape, i64), dim, index, order, Scatter::kAssign);
  return raw::compare(raw::Compare::kEqual, raw::gather(last, dim, index), order);
}

// x with 0 where `index` points: the gradient of what scatter overwrites.
Tensor without_places(const Tensor& x, std::int64_t dim, const Tensor& index) { return scatter(x, dim, index, 0); }

// src cut to the shape of the index, which may be smaller.
Tensor covered(const char* op, const Tensor& src, const Tensor& index) {
  LOCKSTEP_CHECK(src.dim() == index.dim(), "{}: the index {} needs as many dimensions as the source {}", op,
                 describe(index), describe(src));
  Tensor out = src;
  for (int d = 0; d < index.dim(); ++d) {
    LOCKSTEP_CHECK(index.size(d) <= src.size(d), "{}: the index {} is larger than the source {}", op, describe(index),
                   describe(src));
    if (index.size(d) < src.size(d)) out = out.narrow(d, 0, index.size(d));
  }
  return out;
}

// The operation with a source of the index's shape.
Tensor assign(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src) {
  return record("scatter", raw::scatter("scatter", x, dim, index, src, Scatter::kAssign), {x, src},
                [dim, index = Saved(index), shape = x.shape()](const Tensor& grad, const Needs& needs) {
                  Gradients gradients{needs[0] ? without_places(grad, dim, *index) : Tensor(), Tensor()};
                  if (needs[1]) gradients[1] = where(is_kept(shape, dim, *index), gather(grad, dim, *index), 0);
                  return gradients;
                });
}

}  // namespace

Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src) {
  return named("scatter", [&] { return assign(x, dim, index, covered("scatter", src, index)); });
}

Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& index, const Scalar& value) {
  return named("scatter",
               [&] { return assign(x, dim, index, raw::full({}, value, x.options()).expand(index.shape())); });
}

namespace {

// Products: the gradient of a factor is the product of the others. A place with a factor of 0 is computed without it.
Tensor scatter_product(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src) {
  return record("scatter_reduce", raw::scatter("scatter_reduce", x, dim, index, src, Scatter::kMultiply), {x, src},
                [dim, index = Saved(index), x = Saved(x), src = Saved(src)](const Tensor& grad, const Needs& needs) {
                  const Tensor zero_x = *x == 0, zero_src = *src == 0;
                  const Tensor counts = raw::scatter_add(zero_x.to(kInt64), dim, *index, zero_src.to(kInt64));
                  // The product of the factors that are not 0.
                  const Tensor product = scatter_product(where(zero_x, 1, *x), dim, *index, where(zero_src, 1, *src));
                  const auto part = [&](const Tensor& g, const Tensor& factor, const Tensor& zero, const Tensor& zeros,
                                        const Tensor& nonzero_product) {
                    const Tensor others = where(zero, nonzero_product, nonzero_product / where(zero, 1, factor));
                    return g * where(zeros - zero.to(kInt64) == 0, others, 0);
                  };
                  Gradients gradients{Tensor(), Tensor()};
                  if (needs[0]) gradients[0] = part(grad, *x, zero_x, counts, product);
                  if (needs[1])
                    gradients[1] = part(gather(grad, dim, *index), *src, zero_src, raw::gather(counts, dim, *index),
                                        gather(product, dim, *index));
                  return gradients;
                });
}

// Extremes: elements equal to the result share its gradient.
Tensor scatter_extreme(Scatter mode, const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src) {
  return record(
      "scatter_reduce", raw::scatter("scatter_reduce", x, dim, index, src, mode), {x, src},
      [dim, index = Saved(index), x = Saved(x), src = Saved(src)](const Tensor& grad, const Needs&, const Tensor& out) {
        const Tensor chosen_x = *x == out, chosen = *src == raw::gather(out, dim, *index);
        const Tensor count = raw::scatter_add(chosen_x.to(kInt64), dim, *index, chosen.to(kInt64));
        const Tensor share = grad / count;
        return Gradients{where(chosen_x, share, 0), where(chosen, gather(share, dim, *index), 0)};
      });
}

// The largest or smallest number of a dtype: the start of a reduction that leaves out x.
Scalar limit(DType dtype, bool largest) {
  if (is_floating_point(dtype)) return largest ? HUGE_VAL : -HUGE_VAL;
  if (dtype == kUInt8) return largest ? 255 : 0;
  if (dtype == kBool) return largest;
  if (dtype == kInt32)
    return largest ? std::numeric_limits<std::int32_t>::max() : std::numeric_limits<std::int32_t>::min();
  return largest ? std::numeric_limits<std::int64_t>::max() : std::numeric_limits<std::int64_t>::min();
}

}  // namespace

Tensor scatter_reduce(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src,
                      const std::string& reduce, bool include_self) {
  const bool sum = reduce == "sum", mean = reduce == "mean", prod = reduce == "prod", highest = reduce == "amax";
  LOCKSTEP_CHECK(sum || mean || prod || highest || reduce == "amin",
                 "scatter_reduce: reduce is \"{}\"; it must be sum, mean, prod, amax or amin", reduce);
  if (is_half(x.dtype())) {
    const Tensor wide = scatter_reduce(x.to(kFloat32), dim, index, src.to(kFloat32), reduce, include_self);
    return rounded_result(wide, x.dtype());
  }
  return named("scatter_reduce", [&] {
    const Tensor from = covered("scatter_reduce", src, index);
    const Scalar start = sum || mean ? Scalar(0) : prod ? Scalar(1) : limit(x.dtype(), !highest);
    const Tensor own = include_self ? x : scatter(x, dim, index, start);
    if (prod) return scatter_product(own, dim, index, from);
    if (sum || mean) {
      const Tensor total = scatter_add(own, dim, index, from);
      if (sum) return total;
      const TensorOptions i64 = {.dtype = kInt64, .device = x.device()};
      const Tensor ones = raw::full(index.shape(), 1, i64);
      const Tensor counts = raw::scatter_add(raw::full(x.shape(), include_self ? 1 : 0, i64), dim, index, ones);
      const Tensor divisor = maximum(counts, raw::full({}, 1, i64)).to(x.dtype());
      return x.is_floating_point() ? total / divisor : floor_divide(total, divisor);
    }
    return scatter_extreme(highest ? Scatter::kMax : Scatter::kMin, own, dim, index, from);
  });
}

Tensor nonzero(const Tensor& x) { return raw::nonzero(x); }

Tensor masked_select(const Tensor& x, const Tensor& mask) {
  LOCKSTEP_CHECK(mask.dtype() == kBool, "masked_select: the mask must be bool, got {}; compare it with a number",
                 describe(mask));
  return named("masked_select", [&] {
    const Shape shape = broadcast_shapes("masked_select", x.shape(), mask.shape());
    const Tensor places = raw::nonzero(raw::reshape(raw::expand(mask, shape), -1));
    return index_select(x.expand(shape).reshape(-1), 0, places.reshape(-1));
  });
}

Tensor argsort(const Tensor& x, std::int64_t dim, bool descending) {
  return named("argsort", [&] { return raw::sort(x, dim, descending).second; });
}

}  // namespace lockstep
