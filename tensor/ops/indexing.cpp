// Joining, indexing and sorting. Every index is checked against the size it addresses before a kernel reads it.
#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "lockstep/tensor/ops/pieces_internal.h"
#include "lockstep/tensor/ops/wrappers_internal.h"

namespace lockstep::raw {

std::pair<std::int64_t, std::int64_t> index_range(const Tensor& index) {
  std::int64_t low = 0, high = 0;
  const Dense dense(index);
  if (index.numel() > 0) kernels(index.device()).index_range(dense->data<std::int64_t>(), index.numel(), &low, &high);
  return {low, high};
}

namespace {

// The index along dimension d of a shape, as contiguous i64. Throws InvalidArgument naming a value outside the dimension. On
// asynchronous devices the kernels check every index, and synchronising throws.
Tensor checked_index(const char* op, const Tensor& index, const Shape& shape, int d) {
  const std::int64_t size = shape.dim() == 0 ? 1 : shape[at(d)];
  LOCKSTEP_CHECK(index.dtype() == kInt64 || index.dtype() == kInt32, "{}: the index must be i64 or i32, got {}", op,
                 describe(index));
  Tensor out = contiguous(to(index, kInt64));
  if (out.numel() == 0) return out;
  if (!out.device().is_cpu()) {  // its kernels report an index outside the range, and use 0 instead
    LOCKSTEP_CHECK(size > 0, "{}: the index {} is outside [0, 0)", op, describe(index));
    return out;
  }
  const auto [low, high] = index_range(out);
  LOCKSTEP_CHECK(low >= 0 && high < size, "{}: index {} is outside [0, {}), dimension {} of {}", op,
                 low < 0 ? low : high, size, d, shape.to_string());
  return out;
}

}  // namespace

bool is_skipped_by_cat(const Tensor& x) { return x.dim() == 1 && x.numel() == 0; }

namespace {

// Whether the elements of dimension d and those after it, a row, lie without gaps, and the rows at one step, strides[d - 1].
bool has_even_rows(const Tensor& t, int d) {
  std::int64_t step = 1;
  for (int i = t.dim() - 1; i >= 0; --i) {
    const std::int64_t size = t.shape()[at(i)], stride = t.strides()[at(i)];
    if (i == d - 1) step = stride;
    if (size != 1 && stride != step) return false;
    step *= size;
  }
  return true;
}

// Tries to join row by row: long rows on a CPU, where tensor by tensor would visit each row of the result several times.
bool cat_rows(std::span<const Tensor> tensors, int d, const Tensor& out) {
  struct Part {
    const std::byte* data;
    std::int64_t step;  // in bytes, as are the others
    std::size_t bytes;
  };
  constexpr std::size_t kLong = 64;  // bytes of a part, on average
  const Rows rows = rows_along(out, d);
  const std::size_t size = item_size(out.dtype()), row = static_cast<std::size_t>(rows.n * rows.inner) * size;
  if (!out.device().is_cpu() || rows.outer < 2 || row < kLong * tensors.size()) return false;
  std::vector<Part> parts;
  for (const Tensor& t : tensors) {
    if (t.numel() == 0) continue;
    if (t.dtype() != out.dtype() || !has_even_rows(t, d)) return false;
    parts.push_back({static_cast<const std::byte*>(t.raw_data()),
                     t.strides()[at(d - 1)] * static_cast<std::int64_t>(size),
                     static_cast<std::size_t>(t.shape()[at(d)] * rows.inner) * size});
  }
  const auto copy_rows = [&, data = static_cast<std::byte*>(out.raw_data())](std::size_t offset, std::size_t length) {
    std::byte* to = data + offset;
    for (std::size_t r = offset / row; r < (offset + length) / row; ++r) {
      for (const Part& part : parts) {
        std::memcpy(to, part.data + static_cast<std::int64_t>(r) * part.step, part.bytes);
        to += part.bytes;
      }
    }
  };
  for_pieces(static_cast<std::size_t>(rows.outer) * row, copy_rows, row);
  return true;
}

}  // namespace

Tensor cat(std::span<const Tensor> tensors, std::int64_t dim) {
  LOCKSTEP_CHECK(!tensors.empty(), "cat: expected at least one tensor, got none");
  const auto at_first = std::ranges::find_if_not(tensors, is_skipped_by_cat);
  const Tensor& first = at_first == tensors.end() ? tensors.front() : *at_first;
  const int d = wrap_dim("cat", dim, first.dim());
  LOCKSTEP_CHECK(first.dim() > 0, "cat: 0-d tensors cannot be concatenated; use stack");
  Shape shape = first.shape();
  DType dtype = first.dtype();
  shape[at(d)] = 0;
  for (const Tensor& t : tensors) {
    require_same_device("cat", first, t);
    dtype = promote(dtype, t.dtype());
    if (is_skipped_by_cat(t)) continue;
    Shape other = t.shape();
    LOCKSTEP_CHECK(t.dim() == first.dim(), "cat: numbers of dimensions differ: {} and {}", describe(first),
                   describe(t));
    shape[at(d)] += other[at(d)];
    other[at(d)] = first.shape()[at(d)];
    LOCKSTEP_CHECK(other == first.shape(), "cat: sizes outside dimension {} differ: {} and {}", d, describe(first),
                   describe(t));
  }
  Tensor out = empty(shape, {.dtype = dtype, .device = first.device()});
  if (cat_rows(tensors, d, out)) return out;
  std::int64_t start = 0;
  for (const Tensor& t : tensors) {
    if (is_skipped_by_cat(t)) continue;
    const std::int64_t length = t.shape()[at(d)];
    copy(t, slice(out, d, start, start + length, 1));
    start += length;
  }
  return out;
}

Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index) {
  require_same_device("index_select", x, index);
  LOCKSTEP_CHECK(x.dim() > 0 && index.dim() <= 1, "index_select: needs a 1-D index, got {} into {}", describe(index),
                 describe(x));
  const int d = wrap_dim("index_select", dim, x.dim());
  const Tensor positions = checked_index("index_select", index, x.shape(), d);
  Shape shape = x.shape();
  shape[at(d)] = positions.numel();
  const Tensor input = contiguous(x);
  Tensor out = empty(shape, x.options());
  if (out.numel() > 0)
    kernels(x.device())
        .index_select(input.raw_data(), positions.data<std::int64_t>(), out.raw_data(), rows_along(input, d),
                      positions.numel(), x.dtype());
  return out;
}

namespace {

// Kernels add to a place in sequence, in its own dtype. On CPU devices f32 sources of many rows are therefore split
// into parts with a sum of their own, which are then added as `sum` does. A part has kPart rows, or more where that
// keeps the memory of the sums small.
std::int64_t rows_of_part(const Tensor& out, std::int64_t n) {
  constexpr std::int64_t kPart = 128, kShare = 16;
  if (out.dtype() != kFloat32 || !out.device().is_cpu()) return std::numeric_limits<std::int64_t>::max();
  return std::max(kPart, kShare * n);
}

// out (outer, n, inner) += the sum of the parts. run(to, o, first, count) adds source rows [first, first + count) of
// outer index o to `to`.
template <class F>
void add_parts(const Tensor& out, const Rows& rows, std::int64_t count, std::int64_t part, F run) {
  const std::int64_t parts = (count + part - 1) / part, plane = rows.n * rows.inner;
  const Tensor sums = zeros({parts, rows.outer, plane}, out.options()),
               total = empty({rows.outer, plane}, out.options());
  for (std::int64_t p = 0; p < parts; ++p) {
    for (std::int64_t o = 0; o < rows.outer; ++o)
      run(sums.data<float>() + (p * rows.outer + o) * plane, o, p * part, std::min(part, count - p * part));
  }
  sum_out(sums, {0}, false, total);
  add_(reshape(out, total.shape()), total);
}

}  // namespace

Tensor index_add(const Shape& shape, std::int64_t dim, const Tensor& index, const Tensor& src) {
  require_same_device("index_add", src, index);
  if (is_half(src.dtype())) return to(index_add(shape, dim, index, widened(src)), src.dtype());
  const int d = wrap_dim("index_add", dim, shape.dim());
  const Tensor positions = checked_index("index_add", index, shape, d);
  LOCKSTEP_CHECK(src.dim() == shape.dim() && src.shape()[at(d)] == positions.numel(),
                 "index_add: {} index values for {}", positions.numel(), describe(src));
  Tensor out = zeros(shape, src.options());
  const Tensor from = contiguous(src);
  if (from.numel() == 0) return out;
  const Rows rows = rows_along(out, d);
  const std::int64_t count = positions.numel(), part = rows_of_part(out, rows.n);
  const auto* const at_index = positions.data<std::int64_t>();
  const KernelTable& table = kernels(src.device());
  if (count <= part) {
    table.index_add(out.raw_data(), at_index, from.raw_data(), rows, count, src.dtype());
    return out;
  }
  add_parts(out, rows, count, part, [&](float* to, std::int64_t o, std::int64_t first, std::int64_t length) {
    table.index_add(to, at_index + first, from.data<float>() + (o * count + first) * rows.inner,
                    {1, rows.n, rows.inner}, length, kFloat32);
  });
  return out;
}

namespace {

// x cut down to the sizes of index in every dimension but `d`.
Tensor cut_to(const char* op, const Tensor& x, const Tensor& index, int d) {
  LOCKSTEP_CHECK(index.dim() == x.dim(), "{}: the index {} needs as many dimensions as {}", op, describe(index),
                 describe(x));
  Tensor out = x;
  for (int i = 0; i < x.dim(); ++i) {
    const std::int64_t size = index.shape()[at(i)];
    if (i == d || size == x.shape()[at(i)]) continue;
    LOCKSTEP_CHECK(size < x.shape()[at(i)], "{}: the index {} is larger than {} in dimension {}", op, describe(index),
                   describe(x), i);
    out = slice(out, i, 0, size, 1);
  }
  return out;
}

}  // namespace

Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& index) {
  require_same_device("gather", x, index);
  const int d = wrap_dim("gather", dim, x.dim());
  const Tensor input = contiguous(cut_to("gather", x, index, d));
  const Tensor positions = checked_index("gather", index, x.shape(), d);
  Tensor out = empty(index.shape(), x.options());
  if (out.numel() > 0)
    kernels(x.device())
        .gather(input.raw_data(), positions.data<std::int64_t>(), out.raw_data(), rows_along(positions, d),
                rows_along(input, d).n, x.dtype());
  return out;
}

void scatter_(const char* op, const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src, Scatter mode) {
  require_same_device(op, x, index);
  require_same(op, x, src);
  if (is_half(x.dtype()) && mode != Scatter::kAssign) {
    const Tensor wide = widened(x);
    scatter_(op, wide, dim, index, widened(src), mode);
    return copy(wide, x);
  }
  const int d = wrap_dim(op, dim, x.dim());
  const Tensor positions = checked_index(op, index, x.shape(), d);
  Tensor from = src;
  LOCKSTEP_CHECK(src.dim() == index.dim(), "{}: the index {} needs as many dimensions as the source {}", op,
                 describe(index), describe(src));
  for (int i = 0; i < index.dim(); ++i) {
    LOCKSTEP_CHECK(index.shape()[at(i)] <= src.shape()[at(i)], "{}: the index {} is larger than the source {}", op,
                   describe(index), describe(src));
    from = slice(from, i, 0, index.shape()[at(i)], 1);
  }
  if (positions.numel() == 0) return;
  const Tensor region = cut_to(op, x, index, d);
  const Tensor target = contiguous(region), source = overlap(from, target) ? clone(from) : contiguous(from);
  const Rows of_index = rows_along(positions, d), rows = rows_along(target, d);
  const std::int64_t count = of_index.n, part = rows_of_part(target, rows.n);
  const auto* const at_index = positions.data<std::int64_t>();
  const KernelTable& table = kernels(x.device());
  if (mode != Scatter::kAdd || count <= part) {
    table.scatter(target.raw_data(), at_index, source.raw_data(), of_index, rows.n, x.dtype(), mode);
  } else {
    add_parts(target, rows, count, part, [&](float* to, std::int64_t o, std::int64_t first, std::int64_t length) {
      const std::int64_t start = (o * count + first) * rows.inner;
      table.scatter(to, at_index + start, source.data<float>() + start, {1, length, rows.inner}, rows.n, kFloat32,
                    mode);
    });
  }
  if (target.raw_data() != region.raw_data()) copy(target, region);
}

Tensor scatter(const char* op, const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src,
               Scatter mode) {
  const Tensor out = clone(x);
  scatter_(op, out, dim, index, src, mode);
  return out;
}

void assign_runs(const Tensor& x, const Tensor& positions, std::int64_t run, const Tensor& src) {
  const Tensor from = overlap(src, x) ? clone(src) : contiguous(src), starts = contiguous(positions);
  const std::size_t size = item_size(x.dtype()), bytes = static_cast<std::size_t>(run) * size;
  const auto* const start = starts.data<std::int64_t>();
  for (std::int64_t i = 0; i < starts.numel(); ++i)
    std::memcpy(static_cast<char*>(x.raw_data()) + start[i] * static_cast<std::int64_t>(size),
                static_cast<const char*>(from.raw_data()) + static_cast<std::size_t>(i) * bytes, bytes);
}

Tensor scatter_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src) {
  return scatter("scatter_add", x, dim, index, src, Scatter::kAdd);
}

namespace {

// The number of ones among bytes that are 0 or 1.
std::int64_t count_ones(const std::uint8_t* flags, std::int64_t count) {
  std::int64_t ones = 0;
  std::uint64_t word = 0;
  for (; count >= 8; count -= 8, flags += 8) {
    std::memcpy(&word, flags, sizeof(word));
    ones += static_cast<std::int64_t>(word * 0x0101010101010101 >> 56);  // the sum of its bytes
  }
  return std::accumulate(flags, flags + count, ones);
}

// Writes the positions of the `found` flags that are 1, a row of dims numbers for each. Without a branch
// for each flag, which would be mispredicted.
void write_places(const std::uint8_t* flags, const Shape& shape, std::int64_t found, std::int64_t* places) {
  const std::int64_t dims = shape.dim(), n = shape.back();
  for (std::int64_t row = 0, done = 0; done < found; ++row, flags += n) {
    const std::int64_t first = done;
    for (std::int64_t i = 0; i < n && done < found; ++i) {
      places[done * dims + dims - 1] = i;
      done += flags[i];
    }
    std::int64_t rest = row;
    for (int d = shape.dim() - 2; d >= 0; rest /= shape[at(d--)]) {
      for (std::int64_t k = first; k < done; ++k) places[k * dims + d] = rest % shape[at(d)];
    }
  }
}

}  // namespace

Tensor nonzero(const Tensor& x) {
  const Tensor truth = contiguous(to(compare(Compare::kNotEqual, x, full({}, 0, x.options())), Device()));
  const auto* const flags = static_cast<const std::uint8_t*>(truth.raw_data());
  const std::int64_t found = count_ones(flags, x.numel());
  const Tensor places = empty({found, x.dim()}, {.dtype = kInt64});
  if (x.dim() > 0) write_places(flags, x.shape(), found, places.data<std::int64_t>());
  return to(places, x.device());
}

namespace {

// The first `keep` elements in order, and their indices.
std::pair<Tensor, Tensor> select_sorted(const char* op, const Tensor& x, std::int64_t dim, std::int64_t keep,
                                        bool descending) {
  const int d = wrap_dim(op, dim, x.dim());
  const bool last = d == std::max(x.dim() - 1, 0);
  const Tensor input = contiguous(last ? x : transpose(x, d, -1)), keys = widened(input);
  Tensor order = empty(input.shape(), {.dtype = kInt64, .device = x.device()});
  const std::int64_t n = x.dim() == 0 ? 1 : input.shape().back();
  if (order.numel() > 0)
    kernels(x.device())
        .sort(keys.raw_data(), order.data<std::int64_t>(), x.numel() / n, n, keep, keys.dtype(), descending);
  if (x.dim() > 0) order = contiguous(slice(order, -1, 0, keep, 1));
  const Tensor values = gather(input, -1, order);
  if (last) return {values, order};
  return {contiguous(transpose(values, d, -1)), contiguous(transpose(order, d, -1))};
}

}  // namespace

std::pair<Tensor, Tensor> sort(const Tensor& x, std::int64_t dim, bool descending) {
  const int d = wrap_dim("sort", dim, x.dim());
  return select_sorted("sort", x, dim, x.dim() == 0 ? 1 : x.shape()[at(d)], descending);
}

std::pair<Tensor, Tensor> topk(const Tensor& x, std::int64_t k, std::int64_t dim, bool largest) {
  const int d = wrap_dim("topk", dim, x.dim());
  const std::int64_t size = x.dim() == 0 ? 1 : x.shape()[at(d)];
  LOCKSTEP_CHECK(k >= 0 && k <= size, "topk: k = {} of {} elements along dimension {} of {}", k, size, d, describe(x));
  return select_sorted("topk", x, dim, k, largest);
}

}  // namespace lockstep::raw
