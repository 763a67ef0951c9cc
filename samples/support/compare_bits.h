// The strategies of --strategy compare that must end with the same bits, and a check that they do.
#pragma once

#include <string>
#include <vector>

#include "support/options.h"
#include "support/result.h"

namespace samples {

// Throws lockstep::InvalidArgument unless the strategies are guaranteed to compute the same bits, or those of another
// order of sums.
void check_comparable(const Options& options);
// Strategies that add in the same order, and so must end with the same parameters.
struct SameOrder {
  std::vector<std::string> names = {};
  std::string reason = {};  // why the order is not that of whole micro-batches: "2 tensor slices"; empty: it is

  std::string text() const;  // "accumulate, dp and ddp"
};
// The compared strategies without "single", which adds the samples of a batch in an order of its own. The order of whole
// micro-batches comes first.
std::vector<SameOrder> orders_of(const Options& options);
// Prints an error if strategies of one order have different parameters.
bool have_same_bits(const Options& options, const std::vector<Result>& results);

}  // namespace samples
