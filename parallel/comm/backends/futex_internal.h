// Sleeping on a word of shared memory. Linux only.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "lockstep/tensor/error.h"

namespace lockstep::parallel {

// Sleeps while `word` holds `expected`, for at most `longest`. May return early.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::chrono::milliseconds longest);
// Wakes up to `count` sleepers, in any process.
void futex_wake(std::atomic<std::uint32_t>& word, int count);

}  // namespace lockstep::parallel
