// Views: new geometry on the same storage.
#include <algorithm>

#include "lockstep/tensor/ops/wrappers_internal.h"

namespace lockstep::raw {

namespace {

Tensor make_view(const Tensor& x, const Shape& shape, const Strides& strides, std::int64_t offset) {
  const TensorImpl& impl = x.impl();
  const std::int64_t first = impl.offset + offset * static_cast<std::int64_t>(item_size(impl.dtype));
  return Tensor(Ref<TensorImpl>::adopt(new TensorImpl(impl.storage, first, shape, strides, impl.dtype)));
}

// `shape` with -1 replaced by the inferred size.
Shape infer(const char* op, const Tensor& x, Shape shape) {
  std::int64_t known = 1;
  int open = -1;
  for (int i = 0; i < shape.dim(); ++i) {
    if (shape[at(i)] == -1 && open < 0)
      open = i;
    else
      known *= shape[at(i)];
  }
  if (open >= 0 && known > 0 && x.numel() % known == 0) shape[at(open)] = x.numel() / known;
  LOCKSTEP_CHECK(std::ranges::all_of(shape, [](std::int64_t s) { return s >= 0; }) && shape.numel() == x.numel(),
                 "{}: {} has {} elements, which do not fit into shape {}", op, describe(x), x.numel(),
                 shape.to_string());
  return shape;
}

// Strides that give x the (complete) shape without moving elements; false if there are none. Walks both shapes from
// the back: each contiguous run of x's dimensions must be a product of new dimensions.
bool view_strides(const Tensor& x, const Shape& shape, Strides& strides) {
  strides = contiguous_strides(shape);
  if (x.is_contiguous() || x.numel() == 0) return true;
  int next = shape.dim() - 1;
  std::int64_t base = x.strides()[at(x.dim() - 1)], run = 1, covered = 1;
  for (int d = x.dim() - 1; d >= 0; --d) {
    run *= x.shape()[at(d)];
    const bool ends = d == 0 || (x.shape()[at(d - 1)] != 1 && x.strides()[at(d - 1)] != run * base);
    if (!ends) continue;
    while (next >= 0 && (covered < run || shape[at(next)] == 1)) {
      strides[at(next)] = covered * base;
      covered *= shape[at(next--)];
    }
    if (covered != run) return false;
    if (d > 0) {
      base = x.strides()[at(d - 1)];
      run = covered = 1;
    }
  }
  return next == -1;
}

}  // namespace

Tensor as_strided(const Tensor& x, const Shape& shape, const Strides& strides, std::int64_t offset) {
  return make_view(x, shape, strides, offset);
}

Tensor alias(const Tensor& x) { return Tensor(Ref<TensorImpl>::adopt(new TensorImpl(x.impl()))); }

bool is_expanded(const Tensor& x) {
  for (std::size_t d = 0; d < x.shape().size(); ++d) {
    if (x.strides()[d] == 0 && x.shape()[d] > 1) return true;
  }
  return false;
}

bool overlap(const Tensor& a, const Tensor& b) {
  if (a.impl().storage != b.impl().storage) return false;
  const auto end = [](const Tensor& x) {
    std::int64_t last = 0;
    for (std::size_t d = 0; d < x.shape().size(); ++d) last += (x.shape()[d] - 1) * x.strides()[d];
    return x.impl().offset + (last + 1) * static_cast<std::int64_t>(item_size(x.dtype()));
  };
  return a.impl().offset < end(b) && b.impl().offset < end(a);
}

void require_writable(const char* op, const Tensor& out) {
  LOCKSTEP_CHECK(!is_expanded(out), "{}: {} is expanded: several elements share one address; clone() it first", op,
                 describe(out));
}

Tensor view(const Tensor& x, const Shape& shape) {
  const Shape full = infer("view", x, shape);
  Strides strides;
  LOCKSTEP_CHECK(view_strides(x, full, strides),
                 "view: elements of {} with strides {} would have to move for shape {}; use reshape", describe(x),
                 x.strides().to_string(), full.to_string());
  return make_view(x, full, strides, 0);
}

Tensor reshape(const Tensor& x, const Shape& shape) {
  const Shape full = infer("reshape", x, shape);
  Strides strides;
  if (view_strides(x, full, strides)) return make_view(x, full, strides, 0);
  return make_view(contiguous(x), full, contiguous_strides(full), 0);
}

Tensor transpose(const Tensor& x, std::int64_t dim_a, std::int64_t dim_b) {
  const int a = wrap_dim("transpose", dim_a, x.dim()), b = wrap_dim("transpose", dim_b, x.dim());
  Shape shape = x.shape();
  Strides strides = x.strides();
  std::swap(shape[at(a)], shape[at(b)]);
  std::swap(strides[at(a)], strides[at(b)]);
  return make_view(x, shape, strides, 0);
}

Tensor permute(const Tensor& x, const Shape& dims) {
  LOCKSTEP_CHECK(dims.dim() == x.dim(), "permute: {} dimensions given for {}", dims.dim(), describe(x));
  Shape shape = x.shape();
  Strides strides = x.strides();
  unsigned seen = 0;
  for (int i = 0; i < x.dim(); ++i) {
    const int from = wrap_dim("permute", dims[at(i)], x.dim());
    LOCKSTEP_CHECK(!(seen >> from & 1u), "permute: dimension {} appears twice in {}", from, dims.to_string());
    seen |= 1u << from;
    shape[at(i)] = x.shape()[at(from)];
    strides[at(i)] = x.strides()[at(from)];
  }
  return make_view(x, shape, strides, 0);
}

Tensor squeeze(const Tensor& x, std::int64_t dim) {
  const int d = wrap_dim("squeeze", dim, x.dim());
  Shape shape = x.shape();
  Strides strides = x.strides();
  if (x.dim() > 0 && shape[at(d)] == 1) {
    shape.erase(d);
    strides.erase(d);
  }
  return make_view(x, shape, strides, 0);
}

Tensor unsqueeze(const Tensor& x, std::int64_t dim) {
  const int d = wrap_dim("unsqueeze", dim, x.dim() + 1);
  Shape shape = x.shape();
  Strides strides = x.strides();
  const std::int64_t step = d < x.dim() ? shape[at(d)] * strides[at(d)] : 1;
  shape.insert(d, 1);
  strides.insert(d, step);
  return make_view(x, shape, strides, 0);
}

Tensor expand(const Tensor& x, const Shape& shape) {
  LOCKSTEP_CHECK(shape.dim() >= x.dim(), "expand: shape {} has fewer dimensions than {}", shape.to_string(),
                 describe(x));
  Shape out = shape;
  Strides strides = shape;
  const int lead = shape.dim() - x.dim();
  for (int i = 0; i < shape.dim(); ++i) {
    const std::int64_t own = i < lead ? 1 : x.shape()[at(i - lead)];
    if (i >= lead && shape[at(i)] == -1) out[at(i)] = own;
    LOCKSTEP_CHECK(out[at(i)] >= 0 && (own == 1 || own == out[at(i)]), "expand: {} does not expand to {}", describe(x),
                   shape.to_string());
    strides[at(i)] = own == 1 && out[at(i)] != 1 ? 0 : (i < lead ? 0 : x.strides()[at(i - lead)]);
  }
  checked_numel("expand", out);
  return make_view(x, out, strides, 0);
}

Tensor select(const Tensor& x, std::int64_t dim, std::int64_t index) {
  LOCKSTEP_CHECK(x.dim() > 0, "select: a 0-d tensor has no dimension to select from");
  const int d = wrap_dim("select", dim, x.dim());
  const std::int64_t size = x.shape()[at(d)];
  LOCKSTEP_CHECK(index >= -size && index < size, "select: index {} is outside [{}, {}) of dimension {} of {}", index,
                 -size, size, d, describe(x));
  Shape shape = x.shape();
  Strides strides = x.strides();
  const std::int64_t offset = (index < 0 ? index + size : index) * strides[at(d)];
  shape.erase(d);
  strides.erase(d);
  return make_view(x, shape, strides, offset);
}

Tensor slice(const Tensor& x, std::int64_t dim, std::int64_t start, std::int64_t end, std::int64_t step) {
  LOCKSTEP_CHECK(x.dim() > 0, "slice: a 0-d tensor has no dimension to slice");
  LOCKSTEP_CHECK(step > 0, "slice: step {}, expected a positive step", step);
  const int d = wrap_dim("slice", dim, x.dim());
  Shape shape = x.shape();
  Strides strides = x.strides();
  const std::int64_t size = shape[at(d)];
  const auto clip = [size](std::int64_t i) { return std::clamp<std::int64_t>(i < 0 ? i + size : i, 0, size); };
  const std::int64_t first = clip(start), last = std::max(clip(end), first);
  shape[at(d)] = (last - first + step - 1) / step;
  const std::int64_t offset = shape[at(d)] == 0 ? 0 : first * strides[at(d)];
  strides[at(d)] *= step;
  return make_view(x, shape, strides, offset);
}

Tensor diagonal(const Tensor& x, std::int64_t offset, std::int64_t dim1, std::int64_t dim2) {
  const int a = wrap_dim("diagonal", dim1, x.dim()), b = wrap_dim("diagonal", dim2, x.dim());
  LOCKSTEP_CHECK(a != b, "diagonal: dimensions {} and {} of {} are the same", dim1, dim2, describe(x));
  Shape shape = x.shape();
  Strides strides = x.strides();
  const std::int64_t down = offset < 0 ? -offset : 0, right = offset > 0 ? offset : 0;
  const std::int64_t length = std::max<std::int64_t>(std::min(shape[at(a)] - down, shape[at(b)] - right), 0);
  const std::int64_t first = length == 0 ? 0 : down * strides[at(a)] + right * strides[at(b)];
  const std::int64_t step = strides[at(a)] + strides[at(b)];
  for (const int d : {std::max(a, b), std::min(a, b)}) shape.erase(d), strides.erase(d);
  shape.push_back(length);
  strides.push_back(step);
  return make_view(x, shape, strides, first);
}

// A copy of a view with negative strides, which no tensor outside this function has.
Tensor flip(const Tensor& x, const Shape& dims) {
  Strides strides = x.strides();
  std::int64_t first = 0;
  unsigned seen = 0;
  for (const std::int64_t dim : dims) {
    const int d = wrap_dim("flip", dim, x.dim());
    LOCKSTEP_CHECK(!(seen >> d & 1u), "flip: a dimension appears twice in {}", dims.to_string());
    seen |= 1u << d;
    if (x.dim() == 0 || x.numel() == 0) continue;
    first += (x.shape()[at(d)] - 1) * strides[at(d)];
    strides[at(d)] = -strides[at(d)];
  }
  return clone(make_view(x, x.shape(), strides, first));
}

}  // namespace lockstep::raw
