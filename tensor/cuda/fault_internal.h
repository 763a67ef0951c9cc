// Wrong values that only a kernel can see, told later.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/tensor/error.h"

namespace lockstep::cuda {

// What a kernel met that its caller could not know: written once, by the first to come, and told when the device is
// synchronised.
struct Fault {
  enum Kind : int { kNone, kIndex, kClass, kProbability };
  int kind;
  std::int64_t place;  // position among the indices, samples or elements
  std::int64_t value;  // the index or class
  std::int64_t limit;  // it had to be below
};

// "cuda:0: an index is 7, expected 0 to 4 (number 3 of them), in an operation before this one ...".
std::string describe(const Fault& fault, int device);

}  // namespace lockstep::cuda
