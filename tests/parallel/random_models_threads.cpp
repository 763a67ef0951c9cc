// Random models in every mode, on threads.
#include "tests/parallel/random_training.h"

using namespace random_case;

namespace {

// The backend whose module sends messages late: see delayed/late_messages.h. Null without such modules.
const char* late_backend() { return std::getenv("LOCKSTEP_TEST_LATE"); }

}  // namespace

TEST_CASE("random models: all modes have the bits of one process, on threads") {
  for (const int ranks : {2, 3, 4})
    with_threads("local", ranks, [](const Group& group) { check_cases(group, 1000, kCases); });
}

TEST_CASE("random models: all modes have the bits of one process where messages are late" *
          doctest::skip(!late_backend())) {
  const std::uint32_t count = late_backend() == std::string("mpi") ? kCases : kSlowCases;
  for (const int ranks : {2, 3, 4})
    with_threads(late_backend(), ranks, [&](const Group& group) { check_cases(group, 2000, count); },
                 {.reduction = ls::parallel::Reduction::kCanonical});
}

TEST_CASE("the random cases of a backend have every pair of options that can be drawn") {
  std::set<Pair> possible;
  for (int ranks = 2; ranks <= 4; ++ranks) {
    for (std::uint32_t number = 0; number < 20'000; ++number) add_pairs(draw(number, ranks), possible);
  }
  for (const std::uint32_t first : {0, 1000, 2000}) {
    std::set<Pair> seen;
    for (int ranks = 2; ranks <= 4; ++ranks) {
      for (std::uint32_t number = first; number < first + kCases; ++number) add_pairs(draw(number, ranks), seen);
    }
    CHECK(seen.size() == possible.size());
  }
}
