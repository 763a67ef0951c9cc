#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>
#include <tbb/task_arena.h>

#include "pools/pools.h"

namespace bench {

void tbb_fork_join(int threads) {
  static tbb::task_arena arena(threads);
  arena.execute([=] {
    tbb::parallel_for(
        0, threads, [](int) { asm volatile(""); }, tbb::static_partitioner());
  });
}

}  // namespace bench
