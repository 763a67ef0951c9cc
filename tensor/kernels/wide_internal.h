// Wide<T> is the type in which T is summed: f16 and bf16 are summed in f32 and rounded once. Included by kernels only,
// inside their namespace.
#pragma once

#include <type_traits>

#include "lockstep/tensor/half_internal.h"
#include "lockstep/tensor/kernels/level_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

template <class T>
using Wide = std::conditional_t<std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>, float, T>;

template <class T>
[[gnu::always_inline]] HOST_DEVICE inline Wide<T> widen(T x) {
  if constexpr (std::is_same_v<Wide<T>, T>)
    return x;
  else
    return to_float(x);
}

template <class T>
[[gnu::always_inline]] HOST_DEVICE inline T narrow(Wide<T> x) {
  if constexpr (std::is_same_v<T, Half>)
    return to_half(x);
  else if constexpr (std::is_same_v<T, BFloat16>)
    return to_bfloat16(x);
  else
    return x;
}

}  // namespace lockstep::LOCKSTEP_KERNELS
