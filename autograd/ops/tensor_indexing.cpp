// Tensor::index and index_put: integers, slices and None give views; tensors select elements of the view.
#include <algorithm>
#include <limits>

#include "lockstep/autograd/ops/operations_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/tensor/tensor_index.h"

namespace lockstep {

namespace {

using Kind = TensorIndex::Kind;
using Indices = std::vector<TensorIndex>;

// A view, and for each of its dimensions the positions to select: i64 or i32, undefined for all.
struct Selection {
  Tensor view;
  std::vector<Tensor> positions;
};

// True for a 0-d integer tensor, which counts as an integer, as in PyTorch.
bool is_number(const TensorIndex& index) {
  return index.kind == Kind::kTensor && index.tensor.dim() == 0 && is_integer(index.tensor.dtype());
}

int dims_taken(const TensorIndex& index) {
  if (index.kind == Kind::kTensor) return index.tensor.dtype() == kBool ? index.tensor.dim() : 1;
  return index.kind == Kind::kPosition || index.kind == Kind::kSlice ? 1 : 0;
}

// Adds the positions of a tensor index. A mask becomes one tensor of positions for each of its dimensions.
void select_by(const char* op, const Tensor& index, Selection& selection) {
  const int d = static_cast<int>(selection.positions.size());
  if (index.dtype() != kBool) {
    LOCKSTEP_CHECK(index.dtype() == kInt64 || index.dtype() == kInt32,
                   "{}: an index tensor must be i64, i32 or bool, got {}; convert it with to(kInt64)", op,
                   describe(index));
    selection.positions.push_back(index);
    return;
  }
  const Shape& shape = selection.view.shape();
  for (int i = 0; i < index.dim(); ++i)
    LOCKSTEP_CHECK(index.size(i) == shape[static_cast<std::size_t>(d + i)],
                   "{}: the mask {} does not fit {} from dimension {} on", op, describe(index),
                   describe(selection.view), d);
  const Tensor found = nonzero(index);
  for (int i = 0; i < index.dim(); ++i) selection.positions.push_back(found.select(1, i));
}

Selection select(const char* op, const Tensor& x, const Indices& indices) {
  int taken = 0, ellipses = 0;
  for (const TensorIndex& index : indices) taken += dims_taken(index), ellipses += index.kind == Kind::kEllipsis;
  LOCKSTEP_CHECK(taken <= x.dim() && ellipses <= 1, "{}: indices for {} dimensions, {} of them \"...\", of {}", op,
                 taken, ellipses, describe(x));
  Selection out{x, {}};
  const auto d = [&] { return static_cast<std::int64_t>(out.positions.size()); };
  for (const TensorIndex& index : indices) {
    const indexing::Slice& slice = index.slice;
    switch (index.kind) {
      case Kind::kPosition:
        out.view = out.view.select(d(), index.position);
        break;
      case Kind::kSlice:
        out.view = out.view.slice(d(), slice.start.value_or(0),
                                  slice.stop.value_or(std::numeric_limits<std::int64_t>::max()), slice.step);
        out.positions.emplace_back();
        break;
      case Kind::kNone:
        out.view = out.view.unsqueeze(d());
        out.positions.emplace_back();
        break;
      case Kind::kEllipsis:
        out.positions.resize(out.positions.size() + static_cast<std::size_t>(x.dim() - taken));
        break;
      case Kind::kTensor:
        if (is_number(index)) {
          out.view = out.view.select(d(), index.tensor.item<std::int64_t>());
          break;
        }
        if (index.tensor.dim() == 0 && index.tensor.dtype() == kBool) {  // selects all or nothing of a new dimension
          out.view = out.view.unsqueeze(d());
          select_by(op, index.tensor.reshape({1}), out);
          break;
        }
        select_by(op, index.tensor, out);
    }
  }
  out.positions.resize(static_cast<std::size_t>(out.view.dim()));
  return out;
}

// Where the selected positions stand: sum of position * stride over the indexed dimensions, i64.
struct Offsets {
  Tensor values;     // of the shape to which all position tensors broadcast; undefined if there is none
  int first, count;  // the indexed dimensions; first: where their shape appears in the result
  bool adjacent;     // otherwise their shape comes first
};

// `strides`: one for each dimension of the view. Negative positions count from the end. On CPU devices a position
// outside its dimension throws; elsewhere it becomes -1, which the kernels report.
Offsets offsets_of(const char* op, const Selection& selection, const Strides& strides) {
  Offsets out{{}, 0, 0, true};
  int last = 0;
  Tensor valid;
  for (int d = 0; d < selection.view.dim(); ++d) {
    const auto at = static_cast<std::size_t>(d);
    if (!selection.positions[at].defined()) continue;
    const std::int64_t size = selection.view.shape()[at];
    const Tensor index = selection.positions[at].to(selection.view.device()).to(kInt64);
    const bool on_cpu = index.device().is_cpu();
    const auto [low, high] = on_cpu && index.numel() > 0 ? raw::index_range(index) : std::pair(-size, size - 1);
    LOCKSTEP_CHECK(low >= -size && high < size, "{}: a position of {} is outside [{}, {}) of dimension {} of {}", op,
                   describe(index), -size, size, d, describe(selection.view));
    const Tensor positions = low < 0 ? where(index < 0, index + size, index) : index;
    const Tensor part = strides[at] == 1 ? positions : positions * strides[at];
    if (out.count == 0) out.first = d;
    out.adjacent = out.adjacent && (out.count == 0 || d == last + 1);
    out.values = out.count == 0 ? part : named(op, [&] { return out.values + part; });
    if (!on_cpu) {
      const Tensor inside = (positions >= 0) & (positions < size);
      valid = out.count == 0 ? inside : valid & inside;
    }
    last = d;
    ++out.count;
  }
  if (!out.adjacent) out.first = 0;
  if (valid.defined()) out.values = where(valid, out.values, -1);
  return out;
}

bool selects(const Selection& selection) {
  return std::ranges::any_of(selection.positions, [](const Tensor& t) { return t.defined(); });
}

// The position of every selected element in memory, counted from the first element of the view: (result's shape).
Tensor element_positions(const char* op, const Selection& selection) {
  const Strides& strides = selection.view.strides();
  const NoGradGuard no_grad;
  const Offsets offsets = offsets_of(op, selection, strides);
  const TensorOptions i64 = {.dtype = kInt64, .device = selection.view.device()};
  Shape rest;  // the dimensions without index tensors
  for (int d = 0; d < selection.view.dim(); ++d) {
    if (!selection.positions[static_cast<std::size_t>(d)].defined()) rest.push_back(d);
  }
  const int before = offsets.count == 0 || !offsets.adjacent ? 0 : offsets.first;
  Tensor out = offsets.values.defined() ? offsets.values : raw::zeros({}, i64);
  const int dims = rest.dim() + out.dim(), after = rest.dim() - before;
  Shape shape = out.shape();
  for (int i = 0; i < after; ++i) shape.push_back(1);
  out = out.reshape(shape);
  for (int i = 0; i < rest.dim(); ++i) {
    const auto d = static_cast<std::size_t>(rest[static_cast<std::size_t>(i)]);
    const int at = i < before ? i : dims - rest.dim() + i;  // its dimension in the result
    const std::int64_t size = selection.view.shape()[d];
    Shape own(std::vector<std::int64_t>(static_cast<std::size_t>(dims - at), 1));
    own[0] = size;
    out = out + (raw::arange(0, size, 1, i64) * strides[d]).reshape(own);
  }
  return out;
}

// The elements of x from its first one on, in the order of memory.
Tensor memory_of(const Tensor& x) {
  std::int64_t last = x.numel() == 0 ? -1 : 0;
  for (std::size_t d = 0; x.numel() > 0 && d < x.shape().size(); ++d) last += (x.shape()[d] - 1) * x.strides()[d];
  return raw::as_strided(x, last + 1, 1, 0);
}

Tensor expanded_values(const char* op, const Tensor& values, const Shape& selected) {
  Shape shape;
  LOCKSTEP_CHECK(try_broadcast(values.shape(), selected, &shape) && shape == selected,
                 "{}: values {} do not broadcast to the selected elements {}", op, describe(values),
                 selected.to_string());
  return values.expand(shape).reshape(-1);
}

// Takes from a selection the last dimensions that it selects as a whole, and that lie together in memory. Returns them.
Shape take_run(Selection& selection) {
  Shape run;
  while (selection.view.dim() > 0 && !selection.positions.back().defined() &&
         selection.view.strides().back() == run.numel()) {
    run.insert(0, selection.view.size(-1));
    selection.view = raw::select(selection.view, -1, 0);
    selection.positions.pop_back();
  }
  return run;
}

}  // namespace

Tensor Tensor::index(const std::vector<TensorIndex>& indices) const {
  return named("index", [&] {
    Selection s = lockstep::select("index", *this, indices);
    if (!selects(s)) return s.view;
    Shape order, sizes;  // dimensions to move to the front; sizes of the indexed dimensions
    for (int d = 0; d < s.view.dim(); ++d) {
      if (!s.positions[static_cast<std::size_t>(d)].defined()) continue;
      order.push_back(d);
      sizes.push_back(s.view.size(d));
    }
    Strides strides(std::vector<std::int64_t>(s.view.shape().size(), 0));
    const Strides row_major = contiguous_strides(sizes);
    for (std::size_t i = 0; i < order.size(); ++i) strides[static_cast<std::size_t>(order[i])] = row_major[i];
    const Offsets at = offsets_of("index", s, strides);
    Tensor view = s.view;
    if (!at.adjacent) {
      Shape front;
      for (int i = 0; i < at.count; ++i) front.push_back(i);
      view = view.movedim(order, front);
    }
    if (at.count > 1) view = view.flatten(at.first, at.first + at.count - 1);
    const Tensor rows = view.index_select(at.first, at.values.reshape(-1));
    Shape shape = rows.shape();
    shape.erase(at.first);
    for (int i = 0; i < at.values.dim(); ++i) shape.insert(at.first + i, at.values.size(i));
    return rows.reshape(shape);
  });
}

namespace {

// Sets the selected elements, or adds to them.
void put(const char* op, Selection selection, const Tensor& values, bool accumulate) {
  const Tensor view = selection.view;
  const bool by_runs = !accumulate && view.numel() > 0 && view.device().is_cpu() && values.device() == view.device() &&
                       values.dtype() == view.dtype();
  const Shape run = by_runs ? take_run(selection) : Shape();
  const Tensor positions = element_positions(op, selection);
  Shape selected = positions.shape();
  for (const std::int64_t size : run) selected.push_back(size);
  const Tensor source = expanded_values(op, values, selected);
  if (!run.empty()) return raw::assign_runs(view, positions, run.numel(), source);
  raw::scatter_(op, memory_of(view), 0, positions.reshape(-1), source,
                !accumulate             ? raw::Scatter::kAssign
                : view.dtype() == kBool ? raw::Scatter::kMax  // or
                                        : raw::Scatter::kAdd);
}

}  // namespace

void put(const Tensor& x, const std::vector<TensorIndex>& indices, const Tensor& values, bool accumulate) {
  const NoGradGuard no_grad;
  const Selection selection = select("index_put_", x, indices);
  if (selects(selection)) return put("index_put_", selection, values, accumulate);
  accumulate ? raw::add_(selection.view, values) : raw::copy(values, selection.view);
}

Tensor index_put(const Tensor& x, const std::vector<TensorIndex>& indices, const Tensor& values, bool accumulate) {
  return named("index_put", [&] {
    const bool is_recorded = requires_grad(x) || requires_grad(values);
    const Tensor dense = is_recorded ? x.contiguous() : x.clone();
    const Selection selection = select("index_put", dense.detach(), indices);
    if (!is_recorded && selects(selection)) {
      put("index_put", selection, values, accumulate);
      return dense;
    }
    const auto first =
        (selection.view.impl().offset - dense.impl().offset) / static_cast<std::int64_t>(item_size(x.dtype()));
    const Tensor positions = element_positions("index_put", selection) + first, flat = positions.reshape(-1);
    const Tensor source = expanded_values("index_put", values, positions.shape()), elements = dense.reshape(-1);
    const Tensor out = accumulate ? scatter_add(elements, 0, flat, source) : scatter(elements, 0, flat, source);
    return out.reshape(x.shape());
  });
}

}  // namespace lockstep
