#include "lockstep/parallel/comm/silent_ranks_internal.h"

#include "tests/support/testing.h"

namespace {

using ls::parallel::kNoAnswer;
using ls::parallel::kNobody;

constexpr int kOwn = 0;

// Returns the ranks to blame if rank r waits for waits_for[r].
std::vector<int> blamed(const std::vector<int>& waits_for, const std::vector<int>& late, int first) {
  return ls::parallel::find_silent(late, first, kOwn, [&](const std::vector<int>& ranks) {
    std::vector<int> answers;
    for (const int rank : ranks) answers.push_back(waits_for[static_cast<std::size_t>(rank)]);
    return answers;
  });
}

}  // namespace

TEST_CASE("late ranks that do not answer are to blame, all of them") {
  CHECK(blamed({1, kNoAnswer, 1, kNoAnswer}, {1, 2, 3}, 2) == std::vector{1, 3});
  CHECK(blamed({1, kNoAnswer}, {}, kNobody).empty());
}

TEST_CASE("if all late ranks wait, the end of the first one's chain is to blame") {
  CHECK(blamed({1, 2, 3, 4, kNoAnswer, 1}, {1, 5}, 1) == std::vector{4});
  CHECK(blamed({1, 2, 3, 4, kNoAnswer, 3}, {1, 5}, 5) == std::vector{4});
}

TEST_CASE("nobody is to blame if ranks wait for each other, for this one, or for nobody") {
  CHECK(blamed({1, 2, 3, 2}, {1}, 1).empty());
  CHECK(blamed({1, 2, kOwn}, {1}, 1).empty());
  CHECK(blamed({1, 2, kNobody}, {1}, 1).empty());
  CHECK(blamed({1, 1}, {1}, 1).empty());
}

TEST_CASE("the text lists the ranks, and says which were not waited for") {
  const auto name_of = [](int rank) { return "rank " + std::to_string(rank); };
  const auto delay_of = [](int rank) { return rank == 1 ? "has not arrived" : "does not finish its part"; };
  CHECK(ls::parallel::text_of_silent({1, 5, 2}, {1, 2}, name_of, delay_of) ==
        "rank 1 has not arrived, rank 5 does not answer, rank 2 does not finish its part");
  CHECK(ls::parallel::text_of_silent({}, {1}, name_of, delay_of).empty());
}
