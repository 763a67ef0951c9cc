// BatchNormOptions::all_micro_batches where ranks are processes.
#include "tests/parallel/step/batch_statistics.h"

using namespace batch_statistics;

TEST_CASE("over shm with all_micro_batches DDP and every stage give the bits of accumulation") {
  check_all_micro_batches("shm", 0.1, 4, 2);
  check_all_micro_batches("shm", std::nullopt, 4, 4);
}
