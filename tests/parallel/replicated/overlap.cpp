// The overlap that ranks report when they are processes.
#include "tests/parallel/replicated/overlap.h"

#include <doctest/doctest.h>

TEST_CASE("overlap: shm ranks report the buckets that were done before the last gradient was ready") {
  for (const int size : {2, 3}) with_group("shm", size, overlap_test::check_overlap);
}
