// Wrong values that only a kernel can detect, reported later.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep::cuda {

// A wrong value that a kernel found: the first one is recorded, and reported when the device is synchronised.
struct Fault {
  enum Kind : int { kNone, kIndex, kClass, kProbability };
  int kind;
  std::int64_t place;  // index among the indices, samples or elements
  std::int64_t value;  // the index or class
  std::int64_t limit;  // exclusive upper bound of `value`
};

// "cuda:0: an earlier operation: gather: index 7 is outside [0, 5) ...".
std::string describe(const Fault& fault, int device);

}  // namespace lockstep::cuda
