// Equal parts: samples that do not fill all ranks are dropped.
#include "adapters.h"

namespace exercises {

std::vector<std::int64_t> samples_of_rank(std::int64_t n, int world, int rank, std::int64_t epoch, std::int64_t seed) {
  const std::vector<std::int64_t> order = ls::data::permutation(n, seed + epoch);
  const std::int64_t each = n / world;
  return {order.begin() + rank * each, order.begin() + (rank + 1) * each};
}

}  // namespace exercises
