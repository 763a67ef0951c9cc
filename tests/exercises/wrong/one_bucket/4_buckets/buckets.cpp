// No bucket is reduced before backward ends.
#include "adapters.h"

namespace exercises {

std::vector<int> choose_buckets(const std::vector<Gradient>& gradients, const par::Link& link, int ranks) {
  return {static_cast<int>(gradients.size())};
}

}  // namespace exercises
