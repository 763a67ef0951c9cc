// Calls a function that does not exist.
#include "adapters.h"

namespace exercises {

std::vector<std::int64_t> samples_of_rank(std::int64_t n, int world, int rank, std::int64_t epoch, std::int64_t seed) {
  return undeclared_function(n, world, rank, epoch + seed);
}

}  // namespace exercises
