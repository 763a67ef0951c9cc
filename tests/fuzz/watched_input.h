// The main function of a fuzz target: runs one input and measures its memory. libFuzzer limits time (-timeout) and
// single allocations (-malloc_limit_mb).
// single allocations (-malloc_limit_mb).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "tests/support/peak_memory.h"

// Defined by the target. No input may crash it; only errors of ours are allowed.
void fuzz_input(const std::uint8_t* data, std::size_t size);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::int64_t kAllowed = 64 << 20;  // plus the input's size, as in SECURITY.md
  const PeakMemory memory;
  fuzz_input(data, size);
  if (memory.bytes() > static_cast<std::int64_t>(size) + kAllowed) {
    std::fprintf(stderr, "%zu bytes take %lld bytes of memory\n", size, static_cast<long long>(memory.bytes()));
    std::abort();
  }
  return 0;
}
