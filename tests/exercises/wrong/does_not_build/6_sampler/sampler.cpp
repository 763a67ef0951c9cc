// Calls a function that does not exist.
#include "adapters.h"

namespace exercises {

std::vector<std::int64_t> rows_of_rank(std::int64_t n, int world, int rank, std::int64_t epoch, std::int64_t seed) {
  return rows_that_nobody_wrote(n, world, rank, epoch + seed);
}

}  // namespace exercises
