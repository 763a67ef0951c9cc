// A fork and join in other thread pools, to compare with Lockstep's. CMake builds those whose libraries it finds.
#pragma once

namespace bench {

void openmp_fork_join(int threads);
void tbb_fork_join(int threads);

}  // namespace bench
