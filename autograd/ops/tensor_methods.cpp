// The members of Tensor that use autograd: views, conversions, in-place changes, printing.
#include <algorithm>
#include <ostream>

#include "lockstep/autograd/history_internal.h"
#include "lockstep/autograd/ops/operations_internal.h"
#include "lockstep/base/check_internal.h"

namespace lockstep {

// --- views --------------------------------------------------------------------------------------------------------------------

namespace {

Tensor record_reshape(Tensor out, const Tensor& x) {
  return record("reshape", std::move(out), {x},
                [shape = x.shape()](const Tensor& grad, const Needs&) { return Gradients{grad.reshape(shape)}; });
}

}  // namespace

Tensor Tensor::view(const Shape& shape) const {
  require_defined("view", *this);
  return record_reshape(raw::view(*this, shape), *this);
}
Tensor Tensor::reshape(const Shape& shape) const {
  require_defined("reshape", *this);
  return record_reshape(raw::reshape(*this, shape), *this);
}

Tensor Tensor::flatten(std::int64_t start_dim, std::int64_t end_dim) const {
  require_defined("flatten", *this);
  const int dims = std::max(dim(), 1);  // 0-d counts as one dimension
  const int first = wrap_dim("flatten", start_dim, dims), last = wrap_dim("flatten", end_dim, dims);
  LOCKSTEP_CHECK(first <= last, "flatten: start_dim {} is after end_dim {}", start_dim, end_dim);
  if (dim() == 0) return reshape({1});
  Shape flat;
  std::int64_t merged = 1;
  for (int d = 0; d < dim(); ++d) {
    const std::int64_t size = shape()[static_cast<std::size_t>(d)];
    if (d < first || d > last)
      flat.push_back(size);
    else
      merged *= size;
    if (d == last) flat.push_back(merged);
  }
  return reshape(flat);
}

Tensor Tensor::transpose(std::int64_t a, std::int64_t b) const {
  require_defined("transpose", *this);
  return record("transpose", raw::transpose(*this, a, b), {*this},
                [a, b](const Tensor& grad, const Needs&) { return Gradients{grad.transpose(a, b)}; });
}

Tensor Tensor::t() const {
  require_defined("t", *this);
  LOCKSTEP_CHECK(dim() <= 2, "t: {} has more than two dimensions; use transpose or permute", describe(*this));
  return dim() < 2 ? *this : transpose(0, 1);
}

Tensor Tensor::permute(const Shape& dims) const {
  require_defined("permute", *this);
  return record("permute", raw::permute(*this, dims), {*this}, [dims](const Tensor& grad, const Needs&) {
    Shape inverse = dims;
    for (int i = 0; i < dims.dim(); ++i)
      inverse[static_cast<std::size_t>(wrap_dim("permute", dims[static_cast<std::size_t>(i)], dims.dim()))] = i;
    return Gradients{grad.permute(inverse)};
  });
}

Tensor Tensor::squeeze() const {
  require_defined("squeeze", *this);
  Shape kept;
  for (std::int64_t size : shape()) {
    if (size != 1) kept.push_back(size);
  }
  return reshape(kept);
}

Tensor Tensor::squeeze(std::int64_t dim) const {
  require_defined("squeeze", *this);
  return record_reshape(raw::squeeze(*this, dim), *this);
}
Tensor Tensor::unsqueeze(std::int64_t dim) const {
  require_defined("unsqueeze", *this);
  return record_reshape(raw::unsqueeze(*this, dim), *this);
}

Tensor Tensor::expand(const Shape& shape) const {
  require_defined("expand", *this);
  return record("expand", raw::expand(*this, shape), {*this},
                [own = this->shape()](const Tensor& grad, const Needs&) { return Gradients{sum_to(grad, own)}; });
}

namespace {

// The gradient of a slice: zeros, with `grad` at the slice. The gradient of this function is the slice again.
Tensor put_slice(const Tensor& grad, const Shape& shape, std::int64_t dim, std::int64_t start, std::int64_t end,
                 std::int64_t step) {
  Tensor out = raw::zeros(shape, grad.options());
  raw::copy(grad, raw::slice(out, dim, start, end, step));
  return record("slice_backward", out, {grad},
                [=](const Tensor& gg, const Needs&) { return Gradients{gg.slice(dim, start, end, step)}; });
}

}  // namespace

Tensor Tensor::slice(std::int64_t dim, std::int64_t start, std::int64_t end, std::int64_t step) const {
  require_defined("slice", *this);
  return record("slice", raw::slice(*this, dim, start, end, step), {*this},
                [shape = shape(), dim, start, end, step](const Tensor& grad, const Needs&) {
                  return Gradients{put_slice(grad, shape, dim, start, end, step)};
                });
}

Tensor Tensor::narrow(std::int64_t dim, std::int64_t start, std::int64_t length) const {
  require_defined("narrow", *this);
  const std::int64_t total = named("narrow", [&] { return size(dim); }), first = start < 0 ? start + total : start;
  LOCKSTEP_CHECK(first >= 0 && first <= total && length >= 0 && length <= total - first,
                 "narrow: [{}, {} + {}) is outside dimension {} of {}", start, start, length, dim, describe(*this));
  return slice(dim, first, first + length, 1);
}

Tensor Tensor::select(std::int64_t dim, std::int64_t index) const {
  require_defined("select", *this);
  return record("select", raw::select(*this, dim, index), {*this},
                [shape = shape(), dim, index](const Tensor& grad, const Needs&) {
                  const int d = wrap_dim("select", dim, shape.dim());
                  const std::int64_t i = index < 0 ? index + shape[static_cast<std::size_t>(d)] : index;
                  return Gradients{put_slice(grad.unsqueeze(d), shape, d, i, i + 1, 1)};
                });
}

Tensor Tensor::operator[](std::int64_t index) const {
  return named("operator[]", [&] { return select(0, index); });
}

Tensor Tensor::repeat(const Shape& counts) const {
  require_defined("repeat", *this);
  LOCKSTEP_CHECK(counts.dim() >= dim() && std::ranges::all_of(counts, [](std::int64_t n) { return n >= 0; }),
                 "repeat: expected a count of at least 0 for each dimension of {}, got {}", describe(*this),
                 counts.to_string());
  return named("repeat", [&] {
    Tensor out = *this;
    for (int d = dim(); d < counts.dim(); ++d) out = out.unsqueeze(0);
    Shape shape = out.shape();  // of the result, as far as it is repeated
    for (int d = counts.dim() - 1; d >= 0; --d) {
      const auto at = static_cast<std::size_t>(d);
      if (counts[at] == 1) continue;
      if (out.dim() == kMaxDims) out = out.reshape(shape);
      Shape repeated = out.shape();
      repeated.insert(d, counts[at]);
      out = out.unsqueeze(d).expand(repeated);
      shape[at] *= counts[at];
    }
    out = out.reshape(shape);
    return raw::overlap(out, *this) ? out.clone() : out;
  });
}

// --- conversions --------------------------------------------------------------------------------------------------

Tensor Tensor::to(DType target) const {
  require_defined("to", *this);
  if (target == dtype()) return *this;
  Tensor out = raw::to(*this, target);
  if (!lockstep::is_floating_point(target)) return out;
  return record("to", std::move(out), {*this}, [own = dtype()](const Tensor& grad, const Needs& needs) {
    const Tensor view = needs.view(0);
    if (!view.defined()) return Gradients{grad.to(own)};
    raw::copy(grad, view);
    return Gradients{view};
  });
}

Tensor Tensor::to(Device target) const {
  require_defined("to", *this);
  if (target == device()) return *this;
  return record("to", raw::to(*this, target), {*this},
                [own = device()](const Tensor& grad, const Needs&) { return Gradients{grad.to(own)}; });
}

Tensor Tensor::clone() const {
  require_defined("clone", *this);
  return record("clone", raw::clone(*this), {*this}, [](const Tensor& grad, const Needs&) { return Gradients{grad}; });
}

Tensor Tensor::contiguous() const {
  require_defined("contiguous", *this);
  return is_contiguous() ? *this : clone();
}

// --- in place -----------------------------------------------------------------------------------------------------------------

namespace {

// Changes `x` in place. The change is not recorded, so it throws if a gradient would be wrong or lost. Otherwise it
// increments the version, by which backward detects a saved tensor that was changed. `operand` may be undefined.
// Integers have no gradient, so they take any operand.
template <class F>
const Tensor& change(const char* op, const Tensor& x, const Tensor& operand, F write) {
  require_defined(op, x);
  LOCKSTEP_CHECK(
      !requires_grad(x),
      "{}: {} requires grad and cannot be changed in place; use NoGradGuard, detach(), or the function without _", op,
      describe(x));
  LOCKSTEP_CHECK(
      !x.is_floating_point() || !operand.defined() || !requires_grad(operand),
      "{}: the operand {} requires grad, but the change of {} in place is not recorded: the operand would "
      "get no gradient\nbuild the result with x = x + y, stack, cat or where, or pass the operand's detach()",
      op, describe(operand), describe(x));
  LOCKSTEP_CHECK(!x.is_inference() || inference_mode(),
                 "{}: {} was made under InferenceGuard, and is changed in place outside of it; change a clone()", op,
                 describe(x));
  raw::require_writable(op, x);
  write();
  x.impl().storage->bump_version();
  return x;
}

}  // namespace

const Tensor& Tensor::fill_(const Scalar& value) const {
  return change("fill_", *this, {}, [&] { raw::fill(*this, value); });
}
const Tensor& Tensor::zero_() const {
  return change("zero_", *this, {}, [&] { raw::fill(*this, 0); });
}
const Tensor& Tensor::copy_(const Tensor& other) const {
  require_defined("copy_", other, "other");
  return change("copy_", *this, other, [&] { raw::copy(other, *this); });
}
const Tensor& Tensor::add_(const Tensor& other, const Scalar& alpha) const {
  require_defined("add_", other, "other");
  return change("add_", *this, other, [&] { raw::add_(*this, other, alpha); });
}
const Tensor& Tensor::sub_(const Tensor& other, const Scalar& alpha) const {
  require_defined("sub_", other, "other");
  return change("sub_", *this, other, [&] { raw::sub_(*this, other, alpha); });
}
const Tensor& Tensor::mul_(const Tensor& other) const {
  require_defined("mul_", other, "other");
  return change("mul_", *this, other, [&] { raw::mul_(*this, other); });
}
const Tensor& Tensor::div_(const Tensor& other) const {
  require_defined("div_", other, "other");
  return change("div_", *this, other, [&] { raw::div_(*this, other); });
}
const Tensor& Tensor::add_(const Scalar& other) const { return add_(raw::scalar_like("add_", *this, other)); }
const Tensor& Tensor::sub_(const Scalar& other) const { return sub_(raw::scalar_like("sub_", *this, other)); }
const Tensor& Tensor::mul_(const Scalar& other) const { return mul_(factor_like("mul_", *this, other)); }
const Tensor& Tensor::div_(const Scalar& other) const { return div_(factor_like("div_", *this, other)); }

namespace {

// Changes x to the result of `compute`, which has x's shape and no higher category than x.
template <class F>
const Tensor& replace(const char* op, const Tensor& x, const Tensor& operand, F compute) {
  return change(op, x, operand, [&] {
    const NoGradGuard no_grad;
    const Tensor y = named(op, compute);
    LOCKSTEP_CHECK(y.dtype() == kBool || x.is_floating_point() || (x.dtype() != kBool && !y.is_floating_point()),
                   "{}: a result of {} does not fit into {}; use the function without _, or convert it with to(dtype)",
                   op, lockstep::name(y.dtype()), describe(x));
    LOCKSTEP_CHECK(y.shape() == x.shape(), "{}: the result is {}, which does not fit into {}", op, describe(y),
                   describe(x));
    raw::copy(y, x);
  });
}

}  // namespace

const Tensor& Tensor::pow_(const Tensor& exponent) const {
  return replace("pow_", *this, exponent, [&] { return lockstep::pow(*this, exponent); });
}
const Tensor& Tensor::pow_(const Scalar& exponent) const {
  return replace("pow_", *this, {}, [&] { return lockstep::pow(*this, exponent); });
}
const Tensor& Tensor::clamp_(const std::optional<Scalar>& lo, const std::optional<Scalar>& hi) const {
  return replace("clamp_", *this, {}, [&] { return lockstep::clamp(*this, lo, hi); });
}
const Tensor& Tensor::masked_fill_(const Tensor& mask, const Scalar& value) const {
  return replace("masked_fill_", *this, {}, [&] { return lockstep::masked_fill(*this, mask, value); });
}
#define IN_PLACE(function)                                                               \
  const Tensor& Tensor::function##_() const {                                            \
    return replace(#function "_", *this, {}, [&] { return lockstep::function(*this); }); \
  }
IN_PLACE(abs)
IN_PLACE(ceil)
IN_PLACE(cos)
IN_PLACE(exp)
IN_PLACE(floor)
IN_PLACE(log)
IN_PLACE(neg)
IN_PLACE(reciprocal)
IN_PLACE(relu)
IN_PLACE(round)
IN_PLACE(rsqrt)
IN_PLACE(sigmoid)
IN_PLACE(sign)
IN_PLACE(sin)
IN_PLACE(sqrt)
IN_PLACE(square)
IN_PLACE(tanh)
IN_PLACE(trunc)
#undef IN_PLACE

const Tensor& Tensor::index_put_(const std::vector<TensorIndex>& indices, const Tensor& values, bool accumulate) const {
  return change("index_put_", *this, values,
                [&] { named("index_put_", [&] { put(*this, indices, values, accumulate); }); });
}
const Tensor& Tensor::index_put_(const std::vector<TensorIndex>& indices, const Scalar& value) const {
  require_defined("index_put_", *this);
  return index_put_(indices, raw::full({}, value, options()));
}

Tensor& Tensor::operator=(const Tensor& other) && {
  copy_(other);
  return *this;
}
Tensor& Tensor::operator=(const Scalar& value) && {
  fill_(value);
  return *this;
}

// --- printing -------------------------------------------------------------------------------------------------------------------

std::string Tensor::to_string() const {
  const autograd::History* own = defined() ? autograd::history(*this) : nullptr;
  if (own && own->node) return raw::to_string(*this, fmt::format("grad_fn=<{}>", own->node->name));
  return raw::to_string(*this, own && own->requires_grad ? "requires_grad=True" : "");
}

std::ostream& operator<<(std::ostream& stream, const Tensor& tensor) { return stream << tensor.to_string(); }

}  // namespace lockstep
