// The best plan for the first j gradients is the best plan for the first i < j, and a bucket of the others, for some i.
#include <algorithm>

#include "adapters.h"

namespace exercises {

std::vector<int> choose_buckets(const std::vector<Gradient>& gradients, const par::Link& link, int ranks) {
  const std::size_t count = gradients.size();
  std::vector<double> done(count + 1, 1e9);  // earliest time at which the first j gradients are reduced
  std::vector<std::size_t> begin(count + 1, 0);
  done[0] = 0;
  double ready = 0;
  for (std::size_t j = 1; j <= count; ++j) {
    ready += gradients[j - 1].seconds;
    double bytes = 0;
    for (std::size_t i = j; i-- > 0;) {
      bytes += static_cast<double>(gradients[i].bytes);
      const double ring = 2.0 * (ranks - 1) * link.seconds(bytes / ranks);
      if (const double end = std::max(done[i], ready) + ring; end < done[j]) {
        done[j] = end;
        begin[j] = i;
      }
    }
  }
  std::vector<int> sizes;
  for (std::size_t j = count; j > 0; j = begin[j]) sizes.insert(sizes.begin(), static_cast<int>(j - begin[j]));
  return sizes;
}

}  // namespace exercises
