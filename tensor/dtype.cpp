#include "lockstep/tensor/dtype.h"

#include <ostream>

#include "lockstep/tensor/scalar.h"

namespace lockstep {

const char* name(DType dtype) {
  constexpr const char* kNames[kDTypeCount] = {"bool", "u8", "i32", "i64", "f16", "bf16", "f32", "f64"};
  return kNames[static_cast<std::size_t>(dtype)];
}

std::ostream& operator<<(std::ostream& stream, DType dtype) { return stream << name(dtype); }

DType promote(DType a, DType b) {
  // The enumeration is ordered by category and width, so the larger one wins except for the pair of half types.
  const bool halves = (a == kFloat16 && b == kBFloat16) || (a == kBFloat16 && b == kFloat16);
  return halves ? kFloat32 : (a > b ? a : b);
}

DType promote(DType tensor, const Scalar& number) {
  if (number.is_floating_point()) return is_floating_point(tensor) ? tensor : kFloat32;
  if (number.is_bool()) return tensor;
  return tensor == kBool ? kInt64 : tensor;
}

}  // namespace lockstep
