// Measures how much memory a piece of work takes, for tests of limits. A program that includes this file
// counts what malloc gives out, in all its threads.
#pragma once

#include <cstdint>

class PeakMemory {
 public:
  PeakMemory();
  // The most bytes allocated at one time since construction, above those that were allocated then.
  std::int64_t bytes() const;

 private:
  std::int64_t before_;
};
