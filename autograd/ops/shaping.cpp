// Rearranging, repeating and padding: forward and gradient side by side.
#include <algorithm>
#include <numeric>

#include "lockstep/autograd/ops/operations_internal.h"
#include "lockstep/base/check_internal.h"

namespace lockstep {

namespace {

std::size_t at(std::int64_t dim) { return static_cast<std::size_t>(dim); }

Tensor index_tensor(const std::vector<std::int64_t>& index, Device device) {
  return raw::from_bytes(index.data(), static_cast<std::int64_t>(index.size()), kInt64, {.device = device});
}

}  // namespace

Tensor flip(const Tensor& x, const Shape& dims) {
  require_defined("flip", x);
  return record("flip", raw::flip(x, dims), {x},
                [dims](const Tensor& grad, const Needs&) { return Gradients{flip(grad, dims)}; });
}

Tensor roll(const Tensor& x, const Shape& shifts, const Shape& dims) {
  require_defined("roll", x);
  LOCKSTEP_CHECK(
      dims.empty() ? shifts.dim() == 1 : shifts.dim() == dims.dim(),
      "roll: {} shifts for {} dimensions; give one shift for each dimension, or one shift without dimensions",
      shifts.dim(), dims.dim());
  return named("roll", [&] {
    if (dims.empty()) return roll(x.flatten(), shifts, 0).reshape(x.shape());
    Tensor out = x;
    for (std::size_t i = 0; i < dims.size(); ++i) {
      const std::int64_t n = x.size(dims[i]);
      const std::int64_t shift = n == 0 ? 0 : (shifts[i] % n + n) % n;
      out = cat({out.narrow(dims[i], n - shift, shift), out.narrow(dims[i], 0, n - shift)}, dims[i]);
    }
    return out;
  });
}

Tensor tile(const Tensor& x, const Shape& counts) {
  require_defined("tile", x);
  Shape repeats = counts;
  while (repeats.dim() < x.dim()) repeats.insert(0, 1);
  return named("tile", [&] { return x.repeat(repeats); });
}

Tensor repeat_interleave(const Tensor& x, std::int64_t repeats, std::optional<std::int64_t> dim) {
  require_defined("repeat_interleave", x);
  if (!dim) return repeat_interleave(x.flatten(), repeats, 0);
  LOCKSTEP_CHECK(repeats >= 0, "repeat_interleave: {} repeats of {}; the number must not be negative", repeats,
                 describe(x));
  return named("repeat_interleave", [&] {
    const int d = wrap_dim("repeat_interleave", *dim, x.dim());
    Shape shape = x.shape();
    shape.insert(d + 1, repeats);
    const Tensor out = x.unsqueeze(d + 1).expand(shape).flatten(d, d + 1);
    return raw::overlap(out, x) ? out.clone() : out;  // never a view of x, as in PyTorch
  });
}

Tensor repeat_interleave(const Tensor& x, const Tensor& repeats, std::optional<std::int64_t> dim) {
  require_defined("repeat_interleave", x, "x", repeats, "repeats");
  if (!dim) return repeat_interleave(x.flatten(), repeats, 0);
  const std::int64_t n = named("repeat_interleave", [&] { return x.size(*dim); });
  LOCKSTEP_CHECK(is_integer(repeats.dtype()) && repeats.dim() <= 1 && (repeats.numel() == n || repeats.numel() == 1),
                 "repeat_interleave: the repeats are {}, expected one integer, or {} for dimension {} of {}",
                 describe(repeats), n, *dim, describe(x));
  const std::vector<std::int64_t> counts = repeats.to_vector<std::int64_t>();
  std::vector<std::int64_t> index;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t count = counts[counts.size() == 1 ? 0 : at(i)];
    LOCKSTEP_CHECK(count >= 0, "repeat_interleave: {} repeats of position {}; the number must not be negative", count,
                   i);
    index.insert(index.end(), at(count), i);
  }
  return named("repeat_interleave", [&] { return index_select(x, *dim, index_tensor(index, x.device())); });
}

Tensor movedim(const Tensor& x, const Shape& source, const Shape& destination) {
  require_defined("movedim", x);
  LOCKSTEP_CHECK(source.dim() == destination.dim(),
                 "movedim: {} dimensions to {} positions; give one position for each", source.to_string(),
                 destination.to_string());
  std::vector<std::int64_t> order(at(std::max(x.dim(), 1)), -1);  // by new position: the old one; -1: not known yet
  unsigned moved = 0;                                             // bit i: dimension i is in `source`
  for (std::size_t i = 0; i < source.size(); ++i) {
    const int from = wrap_dim("movedim", source[i], x.dim()), to = wrap_dim("movedim", destination[i], x.dim());
    LOCKSTEP_CHECK(!(moved >> from & 1u) && order[at(to)] < 0, "movedim: a dimension appears twice in {} or {}",
                   source.to_string(), destination.to_string());
    moved |= 1u << from;
    order[at(to)] = from;
  }
  if (x.dim() == 0) return x;
  std::int64_t next = 0;
  for (std::int64_t& from : order) {
    if (from >= 0) continue;
    while (moved >> next & 1u) ++next;
    from = next++;
  }
  return x.permute(order);
}

std::vector<Tensor> unbind(const Tensor& x, std::int64_t dim) {
  return named("unbind", [&] {
    std::vector<Tensor> parts;
    for (std::int64_t i = 0; i < x.size(dim); ++i) parts.push_back(x.select(dim, i));
    return parts;
  });
}

std::vector<Tensor> split(const Tensor& x, const std::vector<std::int64_t>& sizes, std::int64_t dim) {
  return named("split", [&] {
    const std::int64_t total = x.size(dim), sum = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    LOCKSTEP_CHECK(sum == total && std::ranges::all_of(sizes, [](std::int64_t size) { return size >= 0; }),
                   "split: sizes of {} in total for dimension {} of {}; expected sizes of at least 0 that add up to {}",
                   sum, dim, describe(x), total);
    std::vector<Tensor> parts;
    std::int64_t start = 0;
    for (const std::int64_t size : sizes) {
      parts.push_back(x.narrow(dim, start, size));
      start += size;
    }
    return parts;
  });
}

std::vector<Tensor> meshgrid(const std::vector<Tensor>& tensors, const std::string& indexing) {
  require_defined("meshgrid", tensors);
  LOCKSTEP_CHECK(indexing == "ij" || indexing == "xy", "meshgrid: indexing \"{}\"; it must be \"ij\" or \"xy\"",
                 indexing);
  const bool is_swapped = indexing == "xy" && tensors.size() >= 2;
  Shape shape;
  for (const Tensor& tensor : tensors) {
    LOCKSTEP_CHECK(tensor.dim() <= 1, "meshgrid: {} has more than one dimension", describe(tensor));
    shape.push_back(tensor.numel());
  }
  std::vector<Tensor> grids;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    Shape along = shape;  // 1 in all dimensions but i
    for (std::size_t d = 0; d < along.size(); ++d) along[d] = d == i ? shape[i] : 1;
    const Tensor grid = tensors[i].reshape(along).expand(shape);
    grids.push_back(is_swapped ? grid.transpose(0, 1) : grid);
  }
  return grids;
}

namespace {

// Zeros of `shape` with `values` on a diagonal. The gradient of `values` is that diagonal of the gradient.
Tensor embed_diagonal(const Tensor& values, const Shape& shape, std::int64_t offset, std::int64_t dim1,
                      std::int64_t dim2) {
  const Tensor out = raw::zeros(shape, values.options());
  raw::copy(values, raw::diagonal(out, offset, dim1, dim2));
  return record("diag_embed", out, {values},
                [=](const Tensor& grad, const Needs&) { return Gradients{diagonal(grad, offset, dim1, dim2)}; });
}

}  // namespace

Tensor diagonal(const Tensor& x, std::int64_t offset, std::int64_t dim1, std::int64_t dim2) {
  require_defined("diagonal", x);
  return record("diagonal", raw::diagonal(x, offset, dim1, dim2), {x},
                [=, shape = x.shape()](const Tensor& grad, const Needs&) {
                  return Gradients{embed_diagonal(grad, shape, offset, dim1, dim2)};
                });
}

Tensor diag(const Tensor& x, std::int64_t offset) {
  require_defined("diag", x);
  LOCKSTEP_CHECK(x.dim() == 1 || x.dim() == 2, "diag: needs one or two dimensions, got {}; use diagonal", describe(x));
  if (x.dim() == 2) return named("diag", [&] { return diagonal(x, offset).clone(); });
  const std::int64_t n = x.numel() + (offset < 0 ? -offset : offset);
  return embed_diagonal(x, {n, n}, offset, 0, 1);
}

namespace {

using Pads = std::vector<std::int64_t>;

// x with a border of `value`; negative widths remove elements. Backward pads the gradient by the negated widths.
Tensor padded(const Tensor& x, const Pads& pads, double value) {
  Shape shape = x.shape();
  Tensor kept = x.detach();  // x without the removed elements
  for (std::size_t i = 0; i < pads.size(); i += 2) {
    const std::size_t d = x.shape().size() - 1 - i / 2;
    const std::int64_t left = std::max<std::int64_t>(-pads[i], 0), right = std::max<std::int64_t>(-pads[i + 1], 0);
    LOCKSTEP_CHECK(left + right <= shape[d], "pad: widths {} and {} remove more than dimension {} of {}", pads[i],
                   pads[i + 1], d, describe(x));
    kept = raw::slice(kept, static_cast<std::int64_t>(d), left, shape[d] - right, 1);
    shape[d] += pads[i] + pads[i + 1];
  }
  const Tensor out = raw::full(shape, value, x.options());
  Tensor inside = out;  // `out` without the border
  for (std::size_t i = 0; i < pads.size(); i += 2) {
    const std::size_t d = x.shape().size() - 1 - i / 2;
    const std::int64_t left = std::max<std::int64_t>(pads[i], 0), right = std::max<std::int64_t>(pads[i + 1], 0);
    inside = raw::slice(inside, static_cast<std::int64_t>(d), left, shape[d] - right, 1);
  }
  raw::copy(kept, inside);
  return record("pad", out, {x}, [pads](const Tensor& grad, const Needs&) {
    Pads negated = pads;
    for (std::int64_t& width : negated) width = -width;
    return Gradients{padded(grad, negated, 0)};
  });
}

// The position in [0, n) whose element a mode copies to position `i`, which may lie outside [0, n).
std::int64_t source_of(std::int64_t i, std::int64_t n, PadMode mode) {
  if (mode == PadMode::kReplicate) return std::clamp<std::int64_t>(i, 0, n - 1);
  if (mode == PadMode::kCircular) return (i + n) % n;
  return i < 0 ? -i : i >= n ? 2 * (n - 1) - i : i;
}

}  // namespace

Tensor pad(const Tensor& x, const std::vector<std::int64_t>& pad, const PadOptions& options) {
  require_defined("pad", x);
  LOCKSTEP_CHECK(pad.size() % 2 == 0 && pad.size() <= 2 * x.shape().size(),
                 "pad: {} widths for {}; give two for each dimension, the last dimension first", pad.size(),
                 describe(x));
  Shape shape = x.shape();
  for (std::size_t i = 0; i < pad.size(); ++i) {
    std::int64_t& size = shape[x.shape().size() - 1 - i / 2];
    LOCKSTEP_CHECK(!__builtin_add_overflow(size, pad[i], &size), "pad: a width of {} for {} is too large", pad[i],
                   describe(x));
  }
  if (options.mode == PadMode::kConstant) return padded(x, pad, options.value);
  Tensor out = x;
  for (std::size_t i = 0; i < pad.size(); i += 2) {
    const auto d = static_cast<std::int64_t>(x.shape().size() - 1 - i / 2);
    const std::int64_t n = x.shape()[at(d)];
    const bool is_limited = options.mode != PadMode::kReplicate;
    const std::int64_t most = options.mode == PadMode::kReflect ? n - 1 : n;
    LOCKSTEP_CHECK(n > 0 && (!is_limited || (pad[i] <= most && pad[i + 1] <= most)) && n + pad[i] + pad[i + 1] >= 0,
                   "pad: widths {} and {} for dimension {} of {}; reflect allows at most {}, circular {}", pad[i],
                   pad[i + 1], d, describe(x), n - 1, n);
    if (pad[i] == 0 && pad[i + 1] == 0) continue;
    std::vector<std::int64_t> index;
    for (std::int64_t p = -pad[i]; p < n + pad[i + 1]; ++p) index.push_back(source_of(p, n, options.mode));
    out = named("pad", [&] { return index_select(out, d, index_tensor(index, x.device())); });
  }
  return out;
}

}  // namespace lockstep
