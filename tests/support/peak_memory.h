// Measures the peak memory of an operation, for tests of memory limits. A program that includes this file counts what
// malloc allocates in all its threads.
#pragma once

#include <cstdint>

class PeakMemory {
 public:
  PeakMemory();
  // Peak of the allocated bytes since construction, minus the bytes allocated at construction.
  std::int64_t bytes() const;

 private:
  std::int64_t before_;
};
