// Batch normalisation over gloo.
#include "tests/parallel/step/batch_statistics.h"

using namespace batch_statistics;

TEST_CASE("over gloo with all_micro_batches DDP and every stage give the bits of accumulation") {
  check_all_micro_batches("gloo", 0.1, 4, 2);
  check_all_micro_batches("gloo", std::nullopt, 4, 4);
}

TEST_CASE("over gloo SyncBatchNorm has the bits of DataParallel") {
  for (const int ranks : {2, 4}) check_sync("gloo", ranks);
}
