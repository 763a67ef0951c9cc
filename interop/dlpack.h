/// \file
/// Exchange of tensors with other libraries, without a copy, by DLPack (https://dmlc.github.io/dlpack). Not part of
/// lockstep.h: a program that includes it needs dlpack.h (Debian: libdlpack-dev).
#pragma once

#include <dlpack/dlpack.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/tensor/memory/storage.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

/// Ends a DLManagedTensor as its producer wants.
struct DlpackDeleter {
  void operator()(DLManagedTensor* managed) const {  ///< calls its deleter, if it has one
    if (managed->deleter) managed->deleter(managed);
  }
};
/// A tensor on its way between two libraries. A consumer that wants a pointer takes release().
using DlpackTensor = std::unique_ptr<DLManagedTensor, DlpackDeleter>;

namespace detail {

constexpr std::uint8_t kDlpackBool = 6;  // kDLBool of DLPack 0.7 and later

// A tensor given to a consumer, with the memory that the description points to.
struct Exported {
  Tensor tensor;
  std::vector<std::int64_t> shape, strides;
  DLManagedTensor managed = {};
};

inline DLDataType dlpack_dtype(DType dtype) {
  const auto bits = static_cast<std::uint8_t>(8 * item_size(dtype));
  if (dtype == kBool) return {kDlpackBool, bits, 1};
  if (dtype == kBFloat16) return {kDLBfloat, bits, 1};
  const auto code = is_floating_point(dtype) ? kDLFloat : dtype == kUInt8 ? kDLUInt : kDLInt;
  return {static_cast<std::uint8_t>(code), bits, 1};
}

inline DType dtype_of_dlpack(const DLDataType& type) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const DLDataType own = dlpack_dtype(dtype);
    if (own.code == type.code && own.bits == type.bits && type.lanes == 1) return dtype;
  }
  throw InvalidArgument("from_dlpack: the elements have type code " + std::to_string(type.code) + ", " +
                        std::to_string(type.bits) + " bits and " + std::to_string(type.lanes) +
                        " lanes, which no dtype is; expected bool, u8, i32, i64, f16, bf16, f32 or f64");
}

inline Device device_of_dlpack(const DLDevice& device) {
  if (device.device_type == kDLCPU || device.device_type == kDLCUDAHost) return Device();
  if (device.device_type == kDLCUDA) return Device("cuda:" + std::to_string(device.device_id));
  throw InvalidArgument("from_dlpack: the tensor is on a device of type " +
                        std::to_string(static_cast<int>(device.device_type)) +
                        "; expected the CPU (1) or a CUDA device (2)");
}

// Throws for a description that no tensor can have. Returns the number of elements from the first to the last in memory.
inline std::int64_t dlpack_extent(const DLTensor& from, const Shape& shape, const Strides& strides) {
  if (checked_numel("from_dlpack", shape) == 0) return 0;
  std::int64_t last = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    std::int64_t part = 0;
    if (strides[d] < 0)
      throw InvalidArgument("from_dlpack: stride " + std::to_string(strides[d]) + " of dimension " + std::to_string(d) +
                            " is negative; copy the tensor first");
    if (__builtin_mul_overflow(shape[d] - 1, strides[d], &part) || __builtin_add_overflow(last, part, &last) ||
        last > std::numeric_limits<std::int64_t>::max() / 16)
      throw InvalidArgument("from_dlpack: the strides of shape " + shape.to_string() + " lead beyond any memory");
  }
  if (!from.data) throw InvalidArgument("from_dlpack: shape " + shape.to_string() + " without data");
  return last + 1;
}

}  // namespace detail

/// The tensor for another library, which shares its memory. It lives until the consumer ends it. Throws InvalidArgument for
/// a tensor that requires grad: the consumer could not record what it does; pass t.detach().
inline DlpackTensor to_dlpack(const Tensor& tensor) {
  if (tensor.requires_grad())
    throw InvalidArgument(
        "to_dlpack: the tensor requires grad, which the other library does not know; pass t.detach()");
  auto exported = std::make_unique<detail::Exported>();
  exported->tensor = tensor;
  exported->shape.assign(tensor.shape().begin(), tensor.shape().end());
  exported->strides.assign(tensor.strides().begin(), tensor.strides().end());
  const bool is_cpu = tensor.device().is_cpu();
  DLManagedTensor& managed = exported->managed;
  managed.dl_tensor = {.data = tensor.raw_data(),
                       .device = {is_cpu ? kDLCPU : kDLCUDA, is_cpu ? 0 : tensor.device().index()},
                       .ndim = tensor.dim(),
                       .dtype = detail::dlpack_dtype(tensor.dtype()),
                       .shape = exported->shape.data(),
                       .strides = exported->strides.data(),
                       .byte_offset = 0};
  managed.deleter = [](DLManagedTensor* self) { delete static_cast<detail::Exported*>(self->manager_ctx); };
  managed.manager_ctx = exported.get();
  return DlpackTensor(&exported.release()->managed);
}

/// A tensor on the memory of another library's, which is ended with the last tensor that uses it, or at once if this
/// throws. Throws InvalidArgument for a description that does not fit a tensor: another dtype or device, more than kMaxDims
/// dimensions, negative strides, elements at addresses that are no multiples of their size. On a GPU the producer's work
/// must have ended.
inline Tensor from_dlpack(DlpackTensor managed) {
  if (!managed) throw InvalidArgument("from_dlpack: the pointer is null; expected a DLManagedTensor");
  const DLTensor& from = managed->dl_tensor;
  if (from.ndim < 0 || from.ndim > kMaxDims)
    throw InvalidArgument("from_dlpack: the tensor has " + std::to_string(from.ndim) + " dimensions; expected 0 to " +
                          std::to_string(kMaxDims));
  const DType dtype = detail::dtype_of_dlpack(from.dtype);
  const Device device = detail::device_of_dlpack(from.device);
  const auto dims = static_cast<std::size_t>(from.ndim);
  const Shape shape(std::vector<std::int64_t>(from.shape, from.shape + dims));
  const Strides strides =
      from.strides ? Strides(std::vector<std::int64_t>(from.strides, from.strides + dims)) : contiguous_strides(shape);
  const std::int64_t extent = detail::dlpack_extent(from, shape, strides);
  auto* const data = static_cast<std::byte*>(from.data) + from.byte_offset;
  if (extent > 0 && reinterpret_cast<std::uintptr_t>(data) % item_size(dtype) != 0)
    throw InvalidArgument("from_dlpack: the elements have " + std::to_string(item_size(dtype)) +
                          " bytes, and the address of the first is no multiple of that; copy the tensor first");
  const std::size_t bytes = static_cast<std::size_t>(extent) * item_size(dtype);
  Ref<Storage> storage = Storage::wrap(data, bytes, device, std::shared_ptr<DLManagedTensor>(std::move(managed)));
  return Tensor(Ref<TensorImpl>::adopt(new TensorImpl(std::move(storage), 0, shape, strides, dtype)));
}
/// Takes the tensor over from a library that gives out a pointer.
inline Tensor from_dlpack(DLManagedTensor* managed) { return from_dlpack(DlpackTensor(managed)); }

}  // namespace lockstep
