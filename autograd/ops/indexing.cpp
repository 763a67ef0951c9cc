// Joining, splitting, indexing and sorting: forward and gradient side by side.
#include <algorithm>

#include "lockstep/autograd/ops/autocast_internal.h"
#include "lockstep/autograd/ops/creation.h"
#include "lockstep/autograd/ops/operations_internal.h"
#include "lockstep/base/check_internal.h"

namespace lockstep {

namespace {

// Splits the gradient into the operands' parts. Backward needs only the sizes.
struct CatBackward {
  std::vector<std::int64_t> sizes;  // along dim; -1 for an operand that was skipped
  std::int64_t dim;

  static bool saves_tensors() { return false; }
  Gradients operator()(const Tensor& grad, const Needs& needs) const {
    Gradients gradients;
    std::int64_t start = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] < 0) {
        gradients.push_back(needs[i] ? raw::zeros({0}, grad.options()) : Tensor());
        continue;
      }
      gradients.push_back(needs[i] ? grad.narrow(dim, start, sizes[i]) : Tensor());
      start += sizes[i];
    }
    return gradients;
  }
};

}  // namespace

Tensor cat(const std::vector<Tensor>& tensors, std::int64_t dim) {
  require_defined("cat", tensors);
  const Tensor out = raw::cat(tensors, dim);
  std::vector<std::int64_t> sizes;
  for (const Tensor& tensor : tensors) sizes.push_back(raw::is_skipped_by_cat(tensor) ? -1 : tensor.size(dim));
  return record("cat", out, tensors, CatBackward{std::move(sizes), dim});
}

Tensor stack(const std::vector<Tensor>& tensors, std::int64_t dim) {
  LOCKSTEP_CHECK(!tensors.empty(), "stack: no tensors given");
  require_defined("stack", tensors);
  return named("stack", [&] {
    std::vector<Tensor> rows;
    for (const Tensor& tensor : tensors) {
      LOCKSTEP_CHECK(tensor.shape() == tensors[0].shape(), "stack: shapes differ: {} and {}", describe(tensors[0]),
                     describe(tensor));
      rows.push_back(tensor.unsqueeze(dim));
    }
    return cat(rows, dim);
  });
}

std::vector<Tensor> split(const Tensor& x, std::int64_t size, std::int64_t dim) {
  require_defined("split", x);
  return named("split", [&] {
    const std::int64_t total = x.size(dim);
    LOCKSTEP_CHECK(size > 0 || (size == 0 && total == 0), "split: size {}; it must be positive", size);
    std::vector<Tensor> parts;
    for (std::int64_t start = 0; start < total; start += size)
      parts.push_back(x.narrow(dim, start, std::min(size, total - start)));
    if (parts.empty()) parts.push_back(x);
    return parts;
  });
}

std::vector<Tensor> chunk(const Tensor& x, std::int64_t count, std::int64_t dim) {
  require_defined("chunk", x);
  LOCKSTEP_CHECK(count > 0, "chunk: {} parts; at least 1 is needed", count);
  return named("chunk", [&] {
    const std::int64_t total = x.size(dim);
    if (total == 0) return std::vector<Tensor>(static_cast<std::size_t>(count), x.narrow(dim, 0, 0));
    return split(x, (total + count - 1) / count, dim);
  });
}

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  require_defined("where", condition, "condition", a, "a", b, "b");
  return record(
      "where", raw::where(condition, a, b), {a, b},
      [condition = Saved(condition), a_shape = a.shape(), b_shape = b.shape()](const Tensor& grad, const Needs& needs) {
        return Gradients{needs[0] ? sum_to(where(*condition, grad, 0), a_shape) : Tensor(),
                         needs[1] ? sum_to(where(*condition, 0, grad), b_shape) : Tensor()};
      });
}

namespace {
// `number` as an operand of `where`: it becomes an element, so it has to fit.
Tensor choice(const Scalar& number, const Tensor& other) {
  require_defined("where", other);
  raw::require_fits("where", number, promote(other.dtype(), number));
  return raw::scalar_like("where", other, number);
}
}  // namespace

Tensor where(const Tensor& condition, const Tensor& a, const Scalar& b) { return where(condition, a, choice(b, a)); }
Tensor where(const Tensor& condition, const Scalar& a, const Tensor& b) { return where(condition, choice(a, b), b); }

Tensor where(const Tensor& condition, const Scalar& a, const Scalar& b) {
  const TensorOptions there = {.device = condition.device()};
  return where(condition, raw::full({}, a, there), raw::full({}, b, there));
}

Tensor masked_fill(const Tensor& x, const Tensor& mask, const Scalar& value) {
  require_defined("masked_fill", x, "x", mask, "mask");
  LOCKSTEP_CHECK(mask.dtype() == kBool, "masked_fill: the mask must be bool, got {}; compare it with a number",
                 describe(mask));
  return named("masked_fill", [&] { return where(mask, raw::full({}, value, x.options()), x); });
}

namespace {

// x with 0 where `is_cut` finds that of a column and a row, moved right by `diagonal`.
template <class F>
Tensor triangle(const char* op, const Tensor& x, std::int64_t diagonal, F is_cut) {
  require_defined(op, x);
  LOCKSTEP_CHECK(x.dim() >= 2, "{}: needs at least two dimensions, got {}", op, describe(x));
  const TensorOptions there = {.device = x.device()};
  const std::int64_t shift = std::clamp(diagonal, -x.size(-2), x.size(-1));
  const Tensor rows = arange(shift, x.size(-2) + shift, 1, there);
  return masked_fill(x, is_cut(arange(x.size(-1), there), rows.unsqueeze(1)), 0);
}

}  // namespace

Tensor tril(const Tensor& x, std::int64_t diagonal) {
  return triangle("tril", x, diagonal, [](const Tensor& column, const Tensor& row) { return column > row; });
}
Tensor triu(const Tensor& x, std::int64_t diagonal) {
  return triangle("triu", x, diagonal, [](const Tensor& column, const Tensor& row) { return column < row; });
}

Tensor one_hot(const Tensor& index, std::int64_t num_classes) {
  require_defined("one_hot", index, "index");
  LOCKSTEP_CHECK(index.dtype() == kInt64, "one_hot: the index must be i64, got {}", describe(index));
  LOCKSTEP_CHECK(num_classes > 0 || (num_classes == -1 && index.numel() > 0),
                 "one_hot: num_classes is {}, the index is {}; give a positive number of classes", num_classes,
                 describe(index));
  if (index.numel() > 0) {
    const auto low = min(index).item<std::int64_t>(), high = max(index).item<std::int64_t>();
    if (num_classes == -1) num_classes = high + 1;
    LOCKSTEP_CHECK(low >= 0 && high < num_classes, "one_hot: index {} is outside [0, {})", low < 0 ? low : high,
                   num_classes);
  }
  return (index.unsqueeze(-1) == arange(num_classes, {.device = index.device()})).to(kInt64);
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
  require_defined("index_select", x, "x", index, "index");
  return record("index_select", raw::index_select(x, dim, index), {x},
                [shape = x.shape(), dim, index = Saved(index)](const Tensor& grad, const Needs&) {
                  return Gradients{spread_rows(grad, shape, dim, *index)};
                });
}

Tensor index_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src, const Scalar& alpha) {
  require_defined("index_add", x, "x", index, "index", src, "src");
  const auto d = static_cast<std::size_t>(wrap_dim("index_add", dim, x.dim()));
  Shape expected = x.shape();
  if (!expected.empty()) expected[d] = index.numel();
  LOCKSTEP_CHECK(index.dim() <= 1 && src.shape() == expected && src.dtype() == x.dtype(),
                 "index_add: the index {} and the source {} do not fit {} along dimension {}; the source must be {} {}",
                 describe(index), describe(src), describe(x), dim, expected.to_string(), name(x.dtype()));
  if (x.dim() == 0) return index_add(x.reshape({1}), 0, index, src.reshape({1}), alpha).reshape(Shape());
  return named("index_add", [&] {
    if (x.dtype() == kBool) return add(x.to(kInt64), spread_rows(src.to(kInt64), x.shape(), dim, index)) != 0;
    const Tensor sums = spread_rows(src, x.shape(), dim, index);
    if (requires_grad(x) || requires_grad(src) || alpha.to_double() != 1) return add(x, sums, alpha);
    raw::add_(sums, x);
    return sums;
  });
}

Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& index) {
  require_defined("gather", x, "x", index, "index");
  return record("gather", raw::gather(x, dim, index), {x},
                [shape = x.shape(), dim, index = Saved(index)](const Tensor& grad, const Needs&) {
                  return Gradients{scatter_add(raw::zeros(shape, grad.options()), dim, *index, grad)};
                });
}

Tensor scatter_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src) {
  require_defined("scatter_add", x, "x", index, "index", src, "src");
  if (x.dtype() == kBool && src.dtype() == kBool)  // a sum of bools is true or false
    return scatter_add(x.to(kInt64), dim, index, src.to(kInt64)) != 0;
  if (x.dtype() != src.dtype() && is_autocast_enabled()) {
    const DType widest = promote(x.dtype(), src.dtype());
    return scatter_add(x.to(widest), dim, index, src.to(widest));
  }
  return record(
      "scatter_add", raw::scatter_add(x, dim, index, src), {x, src},
      [dim, index = Saved(index, requires_grad(src)), src_shape = src.shape()](const Tensor& grad, const Needs& needs) {
        Gradients gradients{needs[0] ? grad : Tensor(), Tensor()};
        if (!needs[1]) return gradients;
        Tensor& by_src = gradients[1];
        if (index->numel() == 0) {
          by_src = raw::zeros(src_shape, grad.options());
          return gradients;
        }
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
  require_defined("sort", x);
  auto [values, indices] = raw::sort(x, dim, descending);
  if (!requires_grad(x)) return {values, indices};
  return {gather(x, dim, indices), indices};
}

std::pair<Tensor, Tensor> topk(const Tensor& x, std::int64_t k, std::int64_t dim, bool largest) {
  require_defined("topk", x);
  auto [values, indices] = raw::topk(x, k, dim, largest);
  if (!requires_grad(x)) return {values, indices};
  return {gather(x, dim, indices), indices};
}

}  // namespace lockstep
