// Calls code for the C++ type of a dtype. Included by kernels only, inside their namespace.
#pragma once

#include "lockstep/tensor/kernels/level_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

// Memory as elements of T.
template <class T>
T* as(void* data) {
  return static_cast<T*>(data);
}
template <class T>
const T* as(const void* data) {
  return static_cast<const T*>(data);
}

// Calls function(T{}) with the C++ type of a dtype.
template <class F>
void for_float(DType dtype, F function) {
  if (dtype == kFloat32)
    function(float{});
  else
    function(double{});
}
// f16 or bf16.
template <class F>
void for_half(DType dtype, F function) {
  if (dtype == kFloat16)
    function(Half{});
  else
    function(BFloat16{});
}
// Dispatches on the four floating-point dtypes.
template <class F>
void for_floating(DType dtype, F function) {
  if (dtype == kFloat16 || dtype == kBFloat16)
    for_half(dtype, function);
  else
    for_float(dtype, function);
}
template <class F>
void for_number(DType dtype, F function) {
  switch (dtype) {
    case kFloat32:
      return function(float{});
    case kFloat64:
      return function(double{});
    case kInt64:
      return function(std::int64_t{});
    case kInt32:
      return function(std::int32_t{});
    default:
      return function(std::uint8_t{});  // u8, and bool as 0 or 1
  }
}
// Dispatches on the size of the dtype, for kernels that only move elements.
template <class F>
void for_size(DType dtype, F function) {
  switch (item_size(dtype)) {
    case 1:
      return function(std::uint8_t{});
    case 2:
      return function(std::uint16_t{});
    case 4:
      return function(std::uint32_t{});
    default:
      return function(std::uint64_t{});
  }
}
// Dispatches on all dtypes, each by its own type.
template <class F>
void for_any(DType dtype, F function) {
  switch (dtype) {
    case kBool:
      return function(bool{});
    case kFloat16:
      return function(Half{});
    case kBFloat16:
      return function(BFloat16{});
    default:
      return for_number(dtype, function);
  }
}

}  // namespace lockstep::LOCKSTEP_KERNELS
