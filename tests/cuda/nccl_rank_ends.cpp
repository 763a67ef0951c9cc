// nccl when a rank's process ends without a word: two processes that lockstep-run starts (ctest's cuda.nccl_rank_ends).
#include "tests/cuda/nccl_ranks.h"

TEST_CASE("nccl: the process of rank 1 ends" * doctest::skip()) {
  const par::InitOptions options = options_of_rank();
  const Group group = par::init_process_group(options);
  const ls::Tensor t = ls::ones({70'000}, {.device = *options.device});
  for (int i = 0; i < 3; ++i) group->all_reduce(t)->wait();
  if (group->rank() == 1) std::_Exit(0);  // as if killed: nothing is sent, closed or freed; 0, so that rank 0 decides
  const std::string error = error_of<ls::CommError>([&] {
    for (int i = 0; i < 100; ++i) group->all_reduce(t)->wait();
  });
  CHECK_MESSAGE(contains(error, "rank 1 is gone"), error);
  CHECK_MESSAGE(contains(error, "all_reduce"), error);
  CHECK(contains(error_of<ls::CommError>([&] { group->barrier(); }), "rank 1 is gone"));  // and it stays failed
}
