// The messages of collectives other than all_reduce on a simulated network, by the usual algorithms: trees for
// broadcast, reduce and barrier; rings for all_gather and reduce_scatter; direct messages for all others.
#pragma once

#include <vector>

#include "lockstep/parallel/comm/backend_internal.h"
#include "lockstep/parallel/simulate/hops.h"

namespace lockstep::parallel {

class CollectiveHops {
 public:
  // `count` is the number of elements of one rank's part.
  CollectiveHops(Kind kind, int ranks, std::int64_t count, int root);
  int steps() const { return steps_; }
  std::vector<Hop> step(int number) const;

 private:
  void add_tree(std::vector<Hop>& hops, int level, bool up) const;

  Kind kind_;
  int ranks_;
  std::int64_t count_;
  int root_, levels_, steps_ = 0;
};

}  // namespace lockstep::parallel
