// A trace as a table: times with and without events inside, by kind and name.
#include "tests/support/testing.h"

namespace {

using Kind = ls::TraceKind;

ls::TraceEvent event(Kind kind, const std::string& name, std::int64_t begin_us, std::int64_t end_us, int thread = 0) {
  return {.kind = kind, .name = name, .thread = thread, .begin = 1000 * begin_us, .end = 1000 * end_us};
}

}  // namespace

TEST_CASE("a profile has a line for each kind and name, with most time of their own first") {
  const ls::Trace trace{
      .dropped = 3,
      .events = {event(Kind::kStep, "step", 0, 1000), event(Kind::kForward, "fc", 0, 500),
                 event(Kind::kKernel, "matmul", 0, 300), event(Kind::kKernel, "add", 50, 250, 1),  // on another thread
                 event(Kind::kCollective, "all_reduce", 100, 700),  // reaches beyond the forward
                 event(Kind::kKernel, "add", 300, 400),
                 event(Kind::kBucketReady, "bucket", 400, 400),  // has no duration
                 event(Kind::kHops, "ring", 450, 650), event(Kind::kBackward, "fc", 500, 900)}};
  CHECK("\n" + ls::profile_table(trace) == R"(
kind       name                           self ms  self %    total ms       calls     mean us
collective all_reduce                           -       -       0.600           1       600.0
backward   fc                               0.400    33.3       0.400           1       400.0
kernel     matmul                           0.300    25.0       0.300           1       300.0
kernel     add                              0.300    25.0       0.300           2       150.0
hops       ring                                 -       -       0.200           1       200.0
step       step                             0.100     8.3       1.000           1      1000.0
forward    fc                               0.100     8.3       0.500           1       500.0
3 events are missing: full rings dropped them; raise .events_per_thread
)");
  const std::string two = ls::profile_table(trace, 2);
  CHECK_MESSAGE(!contains(two, "matmul"), two);
  CHECK(contains(ls::profile_table({}), "kind"));
}

TEST_CASE("a profile of a model names its layers and kernels") {
  const ls::nn::Sequential net(ls::nn::Linear(8, 8), ls::nn::ReLU());
  ls::start_trace({.kernels = true});
  ls::sum(net(ls::ones({4, 8}))).backward();
  const std::string text = ls::profile_table(ls::stop_trace());
  for (const char* part : {"forward    0 Linear", "backward   backward", "backward   linear", "kernel "})
    CHECK_MESSAGE(contains(text, part), text);
}
