// Checks that division by multiplication with a precomputed factor equals division.
#include "lockstep/tensor/cuda/divisor_internal.h"

#include <algorithm>
#include <cstdint>
#include <random>

#include "tests/support/testing.h"

namespace {

// Checks around the multiples of d, where a wrong factor or shift shows.
void check_around(std::int64_t d, std::int64_t n) {
  const ls::LOCKSTEP_KERNELS::Divisor by_d(d);
  for (std::int64_t near = n - 1; near <= n + 1; ++near) {
    if (near < 0) continue;
    const ls::LOCKSTEP_KERNELS::Quotient got = by_d.divide(near);
    if (got.whole == near / d && got.rest == near % d) continue;
    FAIL_CHECK(near << " / " << d << " is not " << got.whole << ", rest " << got.rest);
  }
}

}  // namespace

TEST_CASE("division by multiplication gives the quotient and remainder of a position") {
  constexpr std::int64_t kMost = INT64_MAX - 2;  // its neighbours are checked as well
  std::mt19937_64 random(1);
  const auto check = [&](std::int64_t d) {
    for (const std::int64_t n : {std::int64_t{0}, std::min(d, kMost), kMost, kMost / d * d}) check_around(d, n);
    for (int i = 0; i < 200; ++i) {
      const auto n = static_cast<std::int64_t>(random() >> (random() % 50 + 2));
      check_around(d, n);
      check_around(d, n / d * d);
    }
  };
  for (std::int64_t d = 1; d < 2000; ++d) check(d);
  for (const std::int64_t d : {kMost / 2 + 2, kMost - 1, kMost, INT64_MAX}) check(d);
  for (int bits = 11; bits < 62; ++bits) {
    const std::int64_t power = std::int64_t{1} << bits;
    for (const std::int64_t d : {power - 1, power, power + 1, power + power / 3, power + power / 2}) check(d);
  }
  for (int i = 0; i < 2000; ++i) check(static_cast<std::int64_t>(random() >> (random() % 60 + 2)) + 1);
}
