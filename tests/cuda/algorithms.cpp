// The cache of the algorithms that NVIDIA's libraries choose.
#include "lockstep/tensor/cuda/algorithm_cache_internal.h"
#include "tests/support/testing.h"

TEST_CASE("a library is asked once for each size, and a program with endless sizes keeps few of them") {
  ls::cuda::AlgorithmCache<int, int> cache;
  int asked = 0;
  const auto twice = [&](int key) {
    return cache.find(key, [&] {
      ++asked;
      return 2 * key;
    });
  };
  CHECK(twice(7) == 14);
  CHECK(twice(7) == 14);
  CHECK(asked == 1);
  CHECK_THROWS_AS(cache.find(8, []() -> int { throw ls::DeviceError("none for 8"); }), ls::DeviceError);
  CHECK(twice(8) == 16);
  for (int key = 0; key < 10'000; ++key) CHECK(twice(key) == 2 * key);
  CHECK(cache.size() <= cache.kMost);
}
