// Element types. f32 and f64 compute; f16 and bf16 are storage (cast to compute); integers and bool index and count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "lockstep/tensor/error.h"

namespace lockstep {

// The dtypes; kFloat32 and the like below are short for DType::kFloat32.
enum class DType : std::uint8_t { kBool, kUInt8, kInt32, kInt64, kFloat16, kBFloat16, kFloat32, kFloat64 };

inline constexpr DType kBool = DType::kBool;          // truth values, a byte each
inline constexpr DType kUInt8 = DType::kUInt8;        // 0 to 255
inline constexpr DType kInt32 = DType::kInt32;        // signed, 32 bits
inline constexpr DType kInt64 = DType::kInt64;        // signed, 64 bits: indices and counts
inline constexpr DType kFloat16 = DType::kFloat16;    // IEEE binary16
inline constexpr DType kBFloat16 = DType::kBFloat16;  // bfloat16: the upper half of an f32
inline constexpr DType kFloat32 = DType::kFloat32;    // the default
inline constexpr DType kFloat64 = DType::kFloat64;    // double precision
inline constexpr int kDTypeCount = 8;                 // how many there are

// IEEE binary16 and bfloat16 bit patterns. Converted with `to_float` and `from_float` (half.h).
struct Half {
  std::uint16_t bits;  // sign, 5 of exponent, 10 of mantissa
};
// A bfloat16 number's bits.
struct BFloat16 {
  std::uint16_t bits;  // sign, 8 of exponent, 7 of mantissa
};

// Bytes of one element. A table in a constant, one digit a dtype: a table in memory would be written to the stack at each
// call, or be a symbol that all instruction-set levels share.
constexpr std::size_t item_size(DType dtype) {
  return static_cast<std::size_t>(0x84228411u >> (4 * static_cast<unsigned>(dtype)) & 0xf);
}
static_assert(item_size(kBool) == 1 && item_size(kUInt8) == 1 && item_size(kInt32) == 4 && item_size(kInt64) == 8);
static_assert(item_size(kFloat16) == 2 && item_size(kBFloat16) == 2 && item_size(kFloat32) == 4 &&
              item_size(kFloat64) == 8);

constexpr bool is_floating_point(DType dtype) { return dtype >= DType::kFloat16; }  // floats of any size
constexpr bool is_integer(DType dtype) { return dtype >= DType::kUInt8 && dtype <= DType::kInt64; }  // not bool

// "f32", "i64", ...: the short names used in messages.
const char* name(DType dtype);

// The dtype in which an operation of `a` with `b` is computed, PyTorch's table: the wider of the two within a
// category (bool < integers < floats), the higher category across; f16 with bf16 gives f32.
DType promote(DType a, DType b);

// The DType of a C++ type.
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<bool> : std::integral_constant<DType, DType::kBool> {};
template <>
struct DTypeOf<std::uint8_t> : std::integral_constant<DType, DType::kUInt8> {};
template <>
struct DTypeOf<std::int32_t> : std::integral_constant<DType, DType::kInt32> {};
template <>
struct DTypeOf<std::int64_t> : std::integral_constant<DType, DType::kInt64> {};
template <>
struct DTypeOf<long long> : std::integral_constant<DType, DType::kInt64> {};
template <>
struct DTypeOf<Half> : std::integral_constant<DType, DType::kFloat16> {};
template <>
struct DTypeOf<BFloat16> : std::integral_constant<DType, DType::kBFloat16> {};
template <>
struct DTypeOf<float> : std::integral_constant<DType, DType::kFloat32> {};
template <>
struct DTypeOf<double> : std::integral_constant<DType, DType::kFloat64> {};

// DTypeOf as a value: dtype_of<float> is kFloat32.
template <class T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

}  // namespace lockstep
