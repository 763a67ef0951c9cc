// When the gradients of stages are reduced over replicas, on ranks that send each other messages.
#include "tests/parallel/model_parallel/pipeline_reductions.h"

using namespace pipeline_reductions;

TEST_CASE("a chunk's gradients are reduced from the end of its last backward, before the last backward of others") {
  check_cases("gloo", {{.axis = "dp"},
                       {.axis = "dp", .schedule = par::Schedule::kInterleaved, .chunks = 2},
                       {.axis = "fsdp", .schedule = par::Schedule::kInterleaved, .chunks = 2, .stage = 2},
                       {.axis = "fsdp", .schedule = par::Schedule::kInterleaved, .chunks = 2, .stage = 3},
                       {.axis = "fsdp", .schedule = par::Schedule::kZeroBubble, .stage = 3}});
}

TEST_CASE("an exception after the first reductions of a step ends the step on all ranks, and they name it") {
  check_exceptions("gloo");
}

TEST_CASE("a rank that ends after the first reductions of a step is named by the others") { check_ends("gloo"); }
