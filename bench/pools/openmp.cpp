#include "pools/pools.h"

namespace bench {

void openmp_fork_join(int threads) {
#pragma omp parallel num_threads(threads)
  asm volatile("");  // keeps the region
}

}  // namespace bench
