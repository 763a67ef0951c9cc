// Joining, splitting, indexing and sorting: forward and gradient side by side.
#include <algorithm>

#include "lockstep/autograd/operations_internal.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep {

namespace {

// Splits the gradient into the operands' parts. Backward needs only the sizes.
struct CatBackward {
  std::vector<std::int64_t> sizes;
  std::int64_t dim;

  static bool saves_tensors() { return false; }
  Gradients operator()(const Tensor& grad, const Needs& needs) const {
    Gradients gradients;
    std::int64_t start = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      gradients.push_back(needs[i] ? grad.narrow(dim, start, sizes[i]) : Tensor());
      start += sizes[i];
    }
    return gradients;
  }
};

}  // namespace

Tensor cat(const std::vector<Tensor>& tensors, std::int64_t dim) {
  const Tensor out = raw::cat(tensors, dim);
  std::vector<std::int64_t> sizes;
  for (const Tensor& tensor : tensors) sizes.push_back(tensor.size(dim));
  return record("cat", out, tensors, CatBackward{std::move(sizes), dim});
}

Tensor stack(const std::vector<Tensor>& tensors, std::int64_t dim) {
  LOCKSTEP_CHECK(!tensors.empty(), "stack: no tensors given");
  std::vector<Tensor> rows;
  for (const Tensor& tensor : tensors) {
    LOCKSTEP_CHECK(tensor.shape() == tensors[0].shape(), "stack: shapes differ: {} and {}", describe(tensors[0]),
                   describe(tensor));
    rows.push_back(tensor.unsqueeze(dim));
  }
  return cat(rows, dim < 0 ? wrap_dim("stack", dim, tensors[0].dim() + 1) : dim);
}

std::vector<Tensor> split(const Tensor& x, std::int64_t size, std::int64_t dim) {
  LOCKSTEP_CHECK(size > 0, "split: size {}; it must be positive", size);
  const std::int64_t total = x.size(dim);
  std::vector<Tensor> parts;
  for (std::int64_t start = 0; start < total; start += size)
    parts.push_back(x.narrow(dim, start, std::min(size, total - start)));
  if (parts.empty()) parts.push_back(x);
  return parts;
}

std::vector<Tensor> chunk(const Tensor& x, std::int64_t count, std::int64_t dim) {
  LOCKSTEP_CHECK(count > 0, "chunk: {} parts; at least 1 is needed", count);
  if (x.size(dim) == 0) return std::vector<Tensor>(static_cast<std::size_t>(count), x.narrow(dim, 0, 0));
  return split(x, std::max<std::int64_t>((x.size(dim) + count - 1) / count, 1), dim);
}

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  return record(
      "where", raw::where(condition, a, b), {a, b},
      [condition = Saved(condition), a_shape = a.shape(), b_shape = b.shape()](const Tensor& grad, const Needs& needs) {
        return Gradients{needs[0] ? sum_to(where(*condition, grad, 0), a_shape) : Tensor(),
                         needs[1] ? sum_to(where(*condition, 0, grad), b_shape) : Tensor()};
      });
}

Tensor where(const Tensor& condition, const Tensor& a, const Scalar& b) {
  return where(condition, a, raw::scalar_like(a, b));
}
Tensor where(const Tensor& condition, const Scalar& a, const Tensor& b) {
  return where(condition, raw::scalar_like(b, a), b);
}

Tensor masked_fill(const Tensor& x, const Tensor& mask, const Scalar& value) {
  Shape shape;
  LOCKSTEP_CHECK(try_broadcast(x.shape(), mask.shape(), &shape) && shape == x.shape(),
                 "masked_fill: the mask {} does not broadcast to {}", describe(mask), describe(x));
  raw::require_fits("masked_fill", value, x.dtype());
  return where(mask, raw::full({}, value, x.options()), x);
}

namespace {

// The gradient of index_select. The gradient of this function is index_select again.
Tensor spread_rows(const Tensor& grad, const Shape& shape, std::int64_t dim, const Tensor& index) {
  return record(
      "index_add", raw::index_add(shape, dim, index, grad), {grad},
      [dim, index = Saved(index)](const Tensor& gg, const Needs&) { return Gradients{index_select(gg, dim, *index)}; });
}

}  // namespace

Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index) {
  return record("index_select", raw::index_select(x, dim, index), {x},
                [shape = x.shape(), dim, index = Saved(index)](const Tensor& grad, const Needs&) {
                  return Gradients{spread_rows(grad, shape, dim, *index)};
                });
}

Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& index) {
  return record("gather", raw::gather(x, dim, index), {x},
                [shape = x.shape(), dim, index = Saved(index)](const Tensor& grad, const Needs&) {
                  return Gradients{scatter_add(raw::zeros(shape, grad.options()), dim, *index, grad)};
                });
}

Tensor scatter_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src) {
  return record(
      "scatter_add", raw::scatter_add(x, dim, index, src), {x, src},
      [dim, index = Saved(index, requires_grad(src)), src_shape = src.shape()](const Tensor& grad, const Needs& needs) {
        Gradients gradients{needs[0] ? grad : Tensor(), Tensor()};
        if (!needs[1]) return gradients;
        Tensor& by_src = gradients[1];
        by_src = gather(grad, dim, *index);
        if (by_src.shape() != src_shape) {  // the index did not cover src: the gradient of the rest is 0
          for (std::size_t d = 0; d < src_shape.size(); ++d) {
            Shape unused = by_src.shape();
            unused[d] = src_shape[d] - unused[d];
            if (unused[d] > 0) by_src = cat({by_src, raw::zeros(unused, grad.options())}, static_cast<std::int64_t>(d));
          }
        }
        return gradients;
      });
}

// Gathers the values by the sorted indices, so that the gradient is that of gather.
std::pair<Tensor, Tensor> sort(const Tensor& x, std::int64_t dim, bool descending) {
  auto [values, indices] = raw::sort(x, dim, descending);
  if (!requires_grad(x)) return {values, indices};
  return {gather(x, dim, indices), indices};
}

std::pair<Tensor, Tensor> topk(const Tensor& x, std::int64_t k, std::int64_t dim, bool largest) {
  auto [values, indices] = raw::topk(x, k, dim, largest);
  if (!requires_grad(x)) return {values, indices};
  return {gather(x, dim, indices), indices};
}

}  // namespace lockstep
