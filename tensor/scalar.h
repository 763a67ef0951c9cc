/// \file
/// A C++ number passed in place of a tensor. It keeps its category, so that promotion follows PyTorch: an i64 tensor
/// times 2 stays i64, times 2.5 becomes f32.
#pragma once

#include <cstdint>
#include <type_traits>

#include "lockstep/tensor/dtype.h"

namespace lockstep {

/// A number argument: bool, integer or float, whose category takes part in promotion.
class Scalar {
 public:
  template <class T>
  requires std::is_arithmetic_v<T> Scalar(T value) {  // NOLINT: implicit on purpose
    if constexpr (std::is_floating_point_v<T>) {
      kind_ = Kind::kReal;
      float_ = static_cast<double>(value);
      integer_ = 0;
    } else {
      kind_ = std::is_same_v<T, bool> ? Kind::kTruth : Kind::kInteger;
      integer_ = static_cast<std::int64_t>(value);
      float_ = static_cast<double>(value);
    }
  }

  bool is_floating_point() const { return kind_ == Kind::kReal; }  ///< made from a float or a double
  bool is_bool() const { return kind_ == Kind::kTruth; }           ///< made from a bool
  double to_double() const { return float_; }                      ///< the number as a double
  /// The number truncated to an integer.
  std::int64_t to_int64() const { return kind_ == Kind::kReal ? static_cast<std::int64_t>(float_) : integer_; }
  /// f32, i64 or bool: the dtype a 0-d tensor made from this number has.
  DType dtype() const { return kind_ == Kind::kReal ? kFloat32 : kind_ == Kind::kInteger ? kInt64 : kBool; }

 private:
  enum class Kind : std::uint8_t { kTruth, kInteger, kReal };
  double float_;
  std::int64_t integer_;
  Kind kind_;
};

/// The dtype of `tensor op number`: the number matters only if its category is higher than the tensor's.
DType promote(DType tensor, const Scalar& number);

}  // namespace lockstep
