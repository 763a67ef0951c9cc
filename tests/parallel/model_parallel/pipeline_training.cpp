// Pipelines on processes of shm: the bits of one process, bytes, and the end of a step on all ranks.
#include "tests/parallel/model_parallel/pipeline_training.h"

#include "tests/parallel/model_parallel/failing_stages.h"
#include "tests/parallel/model_parallel/pipeline_bytes.h"

using namespace pipeline_training;

TEST_CASE("stages on processes have the bits of gradient accumulation") {
  check_same("shm", {.dropout = 0.1, .norm = true},
             {{.ranks = 2},
              {.ranks = 4, .micro_batches = 6},
              {.ranks = 2, .chunks = 3, .schedule = par::Schedule::kInterleaved}});
  check_same("shm", {.turned = true, .unused = true, .bf16 = true, .samples = 13},
             {{.ranks = 3, .schedule = par::Schedule::kGPipe}});
}

TEST_CASE("stages on processes send the bytes of the formula") { pipeline_bytes::check_bytes("shm"); }

TEST_CASE("an exception in a stage ends the step on all processes") {
  failing_stages::check_failing_stages("shm");
  failing_stages::check_error_before_the_schedule("shm");
}
