// Pipelines over gloo: the bits of one process, bytes, and the end of a step on all ranks.
#include "tests/parallel/model_parallel/failing_stages.h"
#include "tests/parallel/model_parallel/pipeline_bytes.h"
#include "tests/parallel/model_parallel/pipeline_faults.h"
#include "tests/parallel/model_parallel/pipeline_training.h"
#include "tests/parallel/model_parallel/stage_messages.h"

using namespace pipeline_training;

TEST_CASE("stages over gloo have the bits of gradient accumulation") {
  check_same("gloo", {.dropout = 0.1, .norm = true},
             {{.ranks = 2},
              {.ranks = 4, .micro_batches = 6},
              {.ranks = 2, .chunks = 3, .schedule = par::Schedule::kInterleaved}});
  check_same("gloo", {.turned = true, .unused = true, .bf16 = true, .samples = 13},
             {{.ranks = 3, .schedule = par::Schedule::kGPipe}});
}

TEST_CASE("messages between stages over gloo") {
  with_group("gloo", 2, stage_messages::check_tensors);
  with_group("gloo", 2, [](const Group& group) { stage_messages::check_traffic(group, false); });
  pipeline_bytes::check_bytes("gloo");
}

TEST_CASE("an exception in a stage ends the step on all ranks over gloo") {
  failing_stages::check_failing_stages("gloo");
  failing_stages::check_error_before_the_schedule("gloo");
}

TEST_CASE("a stage that ends or stops is named by the others over gloo") {
  using pipeline_faults::Moment;
  pipeline_faults::check_faults("gloo", 2, pipeline_faults::all_ends(2, /*at_all=*/false));
  pipeline_faults::check_faults("gloo", 4, pipeline_faults::all_ends(4, /*at_all=*/false));
  pipeline_faults::check_faults(
      "gloo", 4, {{SIGSTOP, 4, 1, 2, Moment::kAfterForward}, {SIGSTOP, 4, 3, 0, Moment::kBeforeBackward}});
}
