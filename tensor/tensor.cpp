#include "lockstep/tensor/tensor.h"

#include "lockstep/base/check_internal.h"
#include "lockstep/tensor/half_internal.h"
#include "lockstep/tensor/memory/capture_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep {

namespace {
bool has_contiguous_strides(const Shape& shape, const Strides& strides) {
  std::int64_t expected = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (shape[i] == 1) continue;
    if (strides[i] != expected) return shape.numel() == 0;
    expected *= shape[i];
  }
  return true;
}
}  // namespace

TensorImpl::TensorImpl(Ref<Storage> storage, std::int64_t offset, const Shape& shape, const Strides& strides,
                       DType dtype)
    : storage(std::move(storage)), offset(offset), numel(shape.numel()), shape(shape), strides(strides), dtype(dtype),
      contiguous(has_contiguous_strides(shape, strides)) {}

TensorImpl::TensorImpl(Ref<Storage> storage, const Shape& shape, std::int64_t numel, DType dtype)
    : storage(std::move(storage)), offset(0), numel(numel), shape(shape), strides(contiguous_strides(shape)),
      dtype(dtype), contiguous(true) {}

TensorImpl::TensorImpl(const TensorImpl& other)
    : RefCounted(), storage(other.storage), offset(other.offset), numel(other.numel), shape(other.shape),
      strides(other.strides), dtype(other.dtype), contiguous(other.contiguous) {}

namespace {
constexpr const char* kUndefined =
    "a Tensor() without a value, a parameter that a module does not have, or grad() where no backward left a gradient "
    "(before backward, after zero_grad(), frozen or unused parameters)\nAssign it first, or test it with defined()";
}  // namespace

void Tensor::throw_undefined() {
  throw InvalidArgument(fmt::format("tensor: an undefined tensor was used: {}", kUndefined));
}

void throw_undefined(const char* op, const char* argument) {
  throw InvalidArgument(argument ? fmt::format("{}: the argument {} is undefined: {}", op, argument, kUndefined)
                                 : fmt::format("{}: the tensor is undefined: {}", op, kUndefined));
}

void require_defined(const char* op, const std::vector<Tensor>& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) throw_undefined(op, fmt::format("tensors[{}]", i).c_str());
  }
}

namespace {
// One size or stride of x. Unlike a reduction, a size does not take dimension 0 of a 0-d tensor.
std::int64_t entry_of(const char* op, const Shape& entries, std::int64_t dim, const Tensor& x) {
  LOCKSTEP_CHECK(x.dim() > 0, "{}: dimension {} was requested, but {} is 0-d and has none; test dim() first", op, dim,
                 describe(x));
  return entries[static_cast<std::size_t>(wrap_dim(op, dim, x.dim()))];
}
}  // namespace

std::int64_t Tensor::size(std::int64_t dim) const {
  require_defined("size", *this);
  return entry_of("size", shape(), dim, *this);
}
std::int64_t Tensor::stride(std::int64_t dim) const {
  require_defined("stride", *this);
  return entry_of("stride", strides(), dim, *this);
}

Scalar Tensor::item() const {
  require_defined("item", *this);
  LOCKSTEP_CHECK(numel() == 1, "item: expected one element, the tensor has {}: {}", numel(), describe(*this));
  if (!device().is_cpu()) [[unlikely]] {
    capture::forbid("item", device());
    return raw::to(*this, Device()).item();
  }
  const void* from = raw_data();
  switch (dtype()) {
    case kBool:
      return *static_cast<const bool*>(from);
    case kUInt8:
      return *static_cast<const std::uint8_t*>(from);
    case kInt32:
      return *static_cast<const std::int32_t*>(from);
    case kInt64:
      return *static_cast<const std::int64_t*>(from);
    case kFloat16:
      return to_float(*static_cast<const Half*>(from));
    case kBFloat16:
      return to_float(*static_cast<const BFloat16*>(from));
    case kFloat32:
      return *static_cast<const float*>(from);
    case kFloat64:
      return *static_cast<const double*>(from);
  }
  return 0;
}

void* Tensor::checked_data(DType dtype) const {
  require_defined("data", *this);
  LOCKSTEP_CHECK(dtype == this->dtype(), "data: {} was requested, the tensor is {}", name(dtype), describe(*this));
  return raw_data();
}

void* Tensor::checked_span(DType dtype) const {
  require_defined("span", *this);
  LOCKSTEP_CHECK(dtype == this->dtype(), "span: {} was requested, the tensor is {}", name(dtype), describe(*this));
  LOCKSTEP_CHECK(is_contiguous() && device().is_cpu(),
                 "span: {} is not contiguous memory of the CPU; call contiguous() or to(\"cpu\")", describe(*this));
  return raw_data();
}

void* Tensor::checked_accessor(DType dtype, std::size_t dims) const {
  require_defined("accessor", *this);
  LOCKSTEP_CHECK(
      dtype == this->dtype() && dims == shape().size() && is_cpu(),
      "accessor: {} with {} dimensions on the CPU was requested, the tensor is {} with {}; {}", name(dtype), dims,
      describe(*this), dim(),
      std::cmp_not_equal(dims, dim())
          ? fmt::format("use accessor<T, {}>()", dim())
          : fmt::format("call {}first", dtype == this->dtype() ? "cpu() " : fmt::format("to({}) ", name(dtype))));
  return raw_data();
}

Tensor Tensor::host_copy(DType dtype) const {
  require_defined("to_vector", *this);
  return raw::contiguous(raw::to(device().is_cpu() ? *this : raw::to(*this, Device()), dtype));
}

std::string describe(const Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  return fmt::format("{} {} {}", tensor.shape().to_string(), name(tensor.dtype()), tensor.device().to_string());
}

}  // namespace lockstep
