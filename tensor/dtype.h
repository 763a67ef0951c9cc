/// \file
/// Element types. Operations compute in f32 and f64; operations on f16 and bf16 compute in f32 and round once; integers
/// and bool are for indices and counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <type_traits>

#include "lockstep/base/error.h"

namespace lockstep {

/// The dtypes; kFloat32 below is short for DType::kFloat32, and so on.
enum class DType : std::uint8_t { kBool, kUInt8, kInt32, kInt64, kFloat16, kBFloat16, kFloat32, kFloat64 };

inline constexpr DType kBool = DType::kBool;          ///< truth values, a byte each
inline constexpr DType kUInt8 = DType::kUInt8;        ///< 0 to 255
inline constexpr DType kInt32 = DType::kInt32;        ///< signed, 32 bits
inline constexpr DType kInt64 = DType::kInt64;        ///< signed, 64 bits: indices and counts
inline constexpr DType kFloat16 = DType::kFloat16;    ///< IEEE binary16
inline constexpr DType kBFloat16 = DType::kBFloat16;  ///< bfloat16: the upper half of an f32
inline constexpr DType kFloat32 = DType::kFloat32;    ///< the default
inline constexpr DType kFloat64 = DType::kFloat64;    ///< double precision
/// LibTorch's other names of these dtypes.
inline constexpr DType kByte = kUInt8, kInt = kInt32, kLong = kInt64, kHalf = kFloat16, kFloat = kFloat32,
                       kDouble = kFloat64;
inline constexpr int kDTypeCount = 8;  ///< number of dtypes

/// IEEE binary16 and bfloat16 bit patterns. Converted with `to_float` and `from_float` (half.h).
struct Half {
  std::uint16_t bits;  ///< 1 sign, 5 exponent, 10 mantissa bits
};
/// The bit pattern of a bfloat16 number.
struct BFloat16 {
  std::uint16_t bits;  ///< 1 sign, 8 exponent, 7 mantissa bits
};

/// Bytes of one element. The table is a constant with one digit per dtype: a table in memory would be written to the
/// stack at each call, or be a symbol that all instruction-set levels share.
constexpr std::size_t item_size(DType dtype) {
  return static_cast<std::size_t>(0x84228411u >> (4 * static_cast<unsigned>(dtype)) & 0xf);
}
static_assert(item_size(kBool) == 1 && item_size(kUInt8) == 1 && item_size(kInt32) == 4 && item_size(kInt64) == 8);
static_assert(item_size(kFloat16) == 2 && item_size(kBFloat16) == 2 && item_size(kFloat32) == 4 &&
              item_size(kFloat64) == 8);

constexpr bool is_floating_point(DType dtype) { return dtype >= DType::kFloat16; }  ///< floats of any size
constexpr bool is_integer(DType dtype) { return dtype >= DType::kUInt8 && dtype <= DType::kInt64; }  ///< not bool

/// "f32", "i64", ...: the short names used in messages.
const char* name(DType dtype);
/// Writes name(dtype).
std::ostream& operator<<(std::ostream& stream, DType dtype);

/// The dtype in which an operation of `a` with `b` is computed, as in PyTorch: the wider of the two within a category
/// (bool < integers < floats), otherwise the dtype of the higher category; f16 with bf16 gives f32.
DType promote(DType a, DType b);

/// The DType of a C++ type.
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

/// DTypeOf as a value: `dtype_of<float>` is kFloat32.
template <class T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

}  // namespace lockstep
